// `fovea generate`: one answer on stdout; figures on stderr when it is a terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "chat/local_generation.h"
#include "chat/sampling_flags.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"

namespace fovea::app {
namespace {

struct GenerateState {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt, file, question, json, system;
  bool raw = false;
};

// File, question and prompt, each where given, a blank line between them.
Status build_text(const GenerateState& state, std::string* text) {
  if (!state.file.empty()) FOVEA_RETURN_IF_ERROR(read_input(state.file, text));
  for (const std::string& part : {state.prompt, state.question}) {
    if (part.empty()) continue;
    while (!text->empty() && text->back() == '\n') text->pop_back();
    *text += (text->empty() ? "" : "\n\n") + part;
  }
  if (state.raw && !state.system.empty()) {
    return invalid_argument("--system is a message of the chat template, which --raw leaves out; give one of them");
  }
  if (text->empty() && isatty(STDIN_FILENO) == 0) FOVEA_RETURN_IF_ERROR(read_input("-", text));
  if (text->empty()) {
    return invalid_argument("nothing to answer: give a prompt, --file with --question, or text on stdin");
  }
  return {};
}

std::string_view finish_name(FinishReason finish) {
  return finish == FinishReason::kStop ? "stop" : finish == FinishReason::kLength ? "length" : "cancelled";
}

std::string answer_json(const LocalAnswer& answer) {
  return nlohmann::json{{"text", answer.text},
                        {"finish_reason", finish_name(answer.finish)},
                        {"prompt_tokens", answer.prompt_tokens},
                        {"cached_tokens", answer.cached_tokens},
                        {"completion_tokens", answer.completion_tokens},
                        {"first_token_s", answer.first_token_s},
                        {"total_s", answer.total_s}}
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

int run_generate(GenerateState& state) {
  std::string text;
  if (Status status = build_text(state, &text); !status.ok()) return fail(status);
  if (const Status writable = check_output(state.json); !writable.ok()) return fail(writable);
  auto engine = state.engine.create();
  if (!engine.ok()) return fail(engine.status());
  std::vector<ChatMessage> messages;
  if (!state.system.empty()) messages.push_back({"system", state.system});
  messages.push_back({"user", text});
  auto prompt = state.raw ? (*engine)->encode(text, true) : (*engine)->encode_chat(messages, true, "");
  if (!prompt.ok()) return fail(prompt.status());
  const bool stream = state.json != "-";
  auto answer =
      generate_locally(**engine, std::move(*prompt), state.sampling.params(**engine), [stream](std::string_view piece) {
        if (!stream) return;
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      });
  if (!answer.ok()) return fail(answer.status());
  if (stream && answer->completion_tokens > 0) std::fputs("\n", stdout);
  if (!state.json.empty()) {
    if (Status status = write_output(state.json, answer_json(*answer)); !status.ok()) return fail(status);
  }
  const bool cancelled = answer->finish == FinishReason::kCancelled;
  if (stderr_is_terminal() || cancelled) fmt::print(stderr, "fovea: {}\n", answer->figures());
  return cancelled ? kExitFailure : kExitOk;
}

}  // namespace

RunFunction declare_generate(Options& options) {
  auto state = std::make_shared<GenerateState>();
  options.add_positional("prompt", state->prompt, "What to answer; without it, --file or stdin");
  options.add("file", state->file, "Text to read before the prompt or the question; - is stdin");
  options.add("question", state->question, "Asked after the file");
  options.add("system", state->system, "System message");
  options.add_flag("raw", state->raw, "Continue the text as it is, without the chat template");
  options.add("json", state->json, "Write the answer and its figures as JSON here; - is stdout");
  state->sampling.declare(options);
  state->engine.declare_for_one(options);
  options.examples(
      "  fovea generate \"The code of the amber lantern is 74912. What is the code of the amber lantern?\"\n"
      "  fovea generate --file notes.txt --question \"Who is the keeper of the northern gate?\"\n"
      "  git log | fovea generate --file - --question \"...\" --json -");
  return [state] { return run_generate(*state); };
}

}  // namespace fovea::app
