// `fovea chat`: a conversation in the terminal. Each turn's prompt starts with the last one's, so its KV is cached.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "base/quote.h"
#include "base/status.h"
#include "chat/line_editor.h"
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
    "  /file PATH   puts a file before the next message (Tab completes its name)\n"
    "  /reset       forgets the conversation\n"
    "  /help        shows this\n"
    "  /quit        leaves, as Ctrl-D does; Ctrl-C ends an answer\n"
    "A line that must begin with a slash is sent with a blank before it.\n";

class Conversation {
 public:
  Conversation(ChatState& state, Engine& engine) : state_(state), engine_(engine) { reset(); }

  Status attach(const std::string& path) {
    std::string text;
    if (Status status = read_input(path, &text); !status.ok()) return status;
    pending_ += text + "\n\n";
    return {};
  }
  std::size_t pending_bytes() const { return pending_.size(); }
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
    if (answer->completion_tokens == 0 && answer->finish == FinishReason::kCancelled) {
      messages_.pop_back();
      fmt::print(stderr, "fovea: {}; the message is forgotten\n", answer->figures());
      return {};
    }
    pending_.clear();
    messages_.push_back({"assistant", answer->text});
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (show_figures) fmt::print(stderr, "  [{}]\n", answer->figures());
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

// "/file  a b.txt " -> "/file", "a b.txt".
std::pair<std::string, std::string> split_command(const std::string& line) {
  const std::size_t space = line.find_first_of(" \t");
  if (space == std::string::npos) return {line, ""};
  const std::size_t begin = line.find_first_not_of(" \t", space);
  if (begin == std::string::npos) return {line.substr(0, space), ""};
  return {line.substr(0, space), line.substr(begin, line.find_last_not_of(" \t") - begin + 1)};
}

// A line that begins with a slash; *quit where it ends the conversation.
Status run_command(const std::string& line, Conversation& conversation, bool* quit) {
  const auto [name, argument] = split_command(line);
  if (name == "/file") {
    if (argument.empty()) return invalid_argument("/file needs the path of a text file");
    FOVEA_RETURN_IF_ERROR(conversation.attach(argument));
    fmt::print(stderr, "  [{} stand before the next message]\n",
               format_bytes(static_cast<double>(conversation.pending_bytes())));
    return {};
  }
  const bool known = name == "/help" || name == "/reset" || name == "/quit";
  if (!known) return invalid_argument("there is no command {}; /help lists them", shorten(name));
  if (!argument.empty()) return invalid_argument("{} takes no argument", name);
  if (name == "/help") fmt::print(stderr, "{}", kHelp);
  if (name == "/reset") conversation.reset();
  *quit = name == "/quit";
  return {};
}

int run_chat(ChatState& state) {
  auto engine = state.engine.create();
  if (!engine.ok()) return fail(engine.status());
  // What no answer could have is said before the first line.
  GenerateRequest any;
  any.prompt = {0};
  any.sampling = state.sampling.params(**engine);
  if (const Status status = (*engine)->check(any, nullptr); !status.ok()) return fail(status);
  Conversation conversation(state, **engine);
  if (!state.file.empty()) {
    if (Status status = conversation.attach(state.file); !status.ok()) return fail(status);
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  const auto lines = LineEditor::create("> ", state_file("chat_history"));
  if (terminal)
    fmt::print(stderr, "{}, {} tokens of context.\n{}", (*engine)->model_name(), (*engine)->max_context(), kHelp);
  bool quit = false;
  for (std::string line; !quit && lines->read(&line);) {
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const Status status = line[0] == '/' ? run_command(line, conversation, &quit)
                                         : conversation.turn(line, terminal && stderr_is_terminal());
    if (status.ok()) continue;
    const int code = fail(status);
    if (!terminal) return code;  // what follows was written for a conversation that did not happen
  }
  return kExitOk;
}

}  // namespace

RunFunction declare_chat(Options& options) {
  auto state = std::make_shared<ChatState>();
  options.add("system", state->system, "System message");
  options.add("file", state->file, "Text to put before the first message");
  state->sampling.declare(options);
  state->engine.declare_for_one(options);
  options.examples(
      "  fovea chat\n  fovea chat --file notes.txt\n  fovea chat --model ~/models/Qwen3-0.6B --temperature 0.7");
  return [state] { return run_chat(*state); };
}

}  // namespace fovea::app
