// `fovea chat`: a conversation in the terminal. Each turn's prompt starts with the last one's, so its KV is cached.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "chat/local_generation.h"
#include "chat/sampling_flags.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"

namespace fovea::app {
namespace {

struct ChatState {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system, file;
};

const char kHelp[] =
    "/reset forgets the conversation, /file PATH puts a file before the next message, /quit or Ctrl-D leaves;\n"
    "Ctrl-C ends an answer.\n";

class Conversation {
 public:
  Conversation(ChatState& state, Engine& engine) : state_(state), engine_(engine) { reset(); }

  Status attach(const std::string& path) {
    std::string text;
    if (Status status = read_input(path, &text); !status.ok()) return status;
    pending_ += text + "\n\n";
    return {};
  }
  void reset() {
    messages_.clear();
    pending_.clear();
    if (!state_.system.empty()) messages_.push_back({"system", state_.system});
  }
  // Asks and prints the answer; a failed turn leaves the conversation as it was.
  Status turn(const std::string& line, bool show_figures) {
    messages_.push_back({"user", pending_ + line});
    auto answer = ask();
    if (!answer.ok()) {
      messages_.pop_back();
      return answer.status();
    }
    pending_.clear();
    messages_.push_back({"assistant", answer->text});
    std::fputs("\n", stdout);
    if (show_figures) {
      fmt::print(stderr, "  [{} tokens read, {} of them cached; first token {}, {:.0f} tokens a second]\n",
                 answer->prompt_tokens, answer->cached_tokens, format_seconds(answer->first_token_s),
                 answer->decode_rate());
    }
    return {};
  }

 private:
  Result<LocalAnswer> ask() {
    auto prompt = engine_.encode_chat(messages_, true, "");
    if (!prompt.ok()) return prompt.status();
    return generate_locally(engine_, std::move(*prompt), state_.sampling.params(engine_), [](std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    });
  }

  ChatState& state_;
  Engine& engine_;
  std::vector<ChatMessage> messages_;
  std::string pending_;  // text to put before the next message
};

int run_chat(ChatState& state) {
  auto engine = state.engine.create();
  if (!engine.ok()) return fail(engine.status());
  Conversation conversation(state, **engine);
  if (!state.file.empty()) {
    if (Status status = conversation.attach(state.file); !status.ok()) return fail(status);
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) fmt::print(stderr, "{}. {}", (*engine)->model_name(), kHelp);
  int code = kExitOk;
  for (std::string line;;) {
    if (terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/help") {
      fmt::print(stderr, "{}", kHelp);
      continue;
    }
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    Status status;
    if (line.rfind("/file ", 0) == 0) {
      status = conversation.attach(line.substr(6));
    } else {
      status = conversation.turn(line, terminal && stderr_is_terminal());
    }
    if (!status.ok()) {
      code = fail(status);
      if (!terminal) return code;
    }
  }
  return terminal ? kExitOk : code;
}

}  // namespace

RunFunction declare_chat(Options& options) {
  auto state = std::make_shared<ChatState>();
  options.add("system", state->system, "System message");
  options.add("file", state->file, "Text to put before the first message");
  state->sampling.declare(options);
  state->engine.declare(options);
  options.examples(
      "  fovea chat\n  fovea chat --file notes.txt\n  fovea chat --model ~/models/Qwen3-0.6B --temperature 0.7");
  return [state] { return run_chat(*state); };
}

}  // namespace fovea::app
