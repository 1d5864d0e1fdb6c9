// `fovea profile keys`: the key sketch of a model, by which page selection (--sparse fovea) finds what a query needs,
// learned while the model reads documents.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "chat/local_generation.h"
#include "commands.h"
#include "console.h"
#include "engine/engine_core.h"
#include "engine_flags.h"
#include "eval/needle.h"

namespace fovea::app {
namespace {

struct ProfileState {
  EngineFlags engine;
  NeedleEvalOptions eval;  // of the documents
  std::int32_t context = 8192, documents = 8;
  std::string text_file, out = kKeyCodesFile;
};

using Prompt = std::vector<std::int32_t>;

// A document with a question about it, whose queries look for what queries will look for.
Result<Prompt> question_prompt(const Engine& engine, const ProfileState& s, std::int32_t number) {
  FOVEA_ASSIGN_OR_RETURN(const NeedleDocument document,
                         needle_document(engine, s.eval, s.context, static_cast<std::uint64_t>(number), 1));
  const std::string text = document.text + "\n\n" + document.questions[0].question;
  return engine.chat_template().empty() ? engine.encode(text, true) : engine.encode_chat({{"user", text}}, true, "");
}

// Random weights have no words.
Prompt random_prompt(const Engine& engine, const ProfileState& s, std::int32_t number) {
  PhiloxRng rng(s.eval.seed * 1000003 + static_cast<std::uint64_t>(number));
  Prompt prompt(static_cast<std::size_t>(s.context - 1));
  for (std::int32_t& token : prompt)
    token = static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(engine.vocab_size())));
  return prompt;
}

// What document `number` is made of: one that is made up, or the next piece of `text`; empty: there are no more.
Result<Prompt> make_prompt(const Engine& engine, const ProfileState& s, const Prompt& text, std::int32_t number) {
  if (number >= s.documents) return Prompt();
  if (s.text_file.empty()) {
    if (engine.encode("a", false).ok()) return question_prompt(engine, s, number);
    return random_prompt(engine, s, number);
  }
  const std::size_t length = static_cast<std::size_t>(s.context - 1);
  const std::size_t begin = std::min(static_cast<std::size_t>(number) * length, text.size());
  const std::size_t end = std::min(begin + length, text.size());
  return Prompt(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end));
}

Status check(const ProfileState& s) {
  if (s.documents < 1) return invalid_argument("documents is {}, expected 1 or more", s.documents);
  if (s.engine.starts_ranks()) return unsupported("profile keys runs in one process; leave out --tp");
  return check_output(s.out);
}

Status profile_keys(ProfileState& s) {
  FOVEA_RETURN_IF_ERROR(check(s));
  s.eval.contexts = {s.context};
  s.eval.spec.split = NeedleSplit::kTrain;
  s.eval.spec.filler = NeedleFiller::kMixed;
  std::string text;
  if (!s.text_file.empty()) FOVEA_RETURN_IF_ERROR(read_input(s.text_file, &text));
  EngineOptions options = s.engine.resolved();
  options.prefix_cache = false;  // what is read again counts again
  FOVEA_ASSIGN_OR_RETURN(const ProfilingEngine made, create_profiling_engine(options));
  Engine& engine = *made.engine;
  FOVEA_RETURN_IF_ERROR(check_needle_options(engine, s.eval));
  Prompt text_tokens;
  if (!s.text_file.empty()) {
    FOVEA_ASSIGN_OR_RETURN(text_tokens, engine.encode(text, false));
    if (text_tokens.empty()) return invalid_argument("{} has no text", s.text_file);
  }
  SamplingParams sampling;
  sampling.max_tokens = 1;
  sampling.temperature = 0.0f;
  std::int32_t read = 0;
  std::int64_t tokens = 0;
  for (;; ++read) {
    FOVEA_ASSIGN_OR_RETURN(Prompt prompt, make_prompt(engine, s, text_tokens, read));
    if (prompt.empty()) break;
    tokens += static_cast<std::int64_t>(prompt.size());
    FOVEA_ASSIGN_OR_RETURN(const LocalAnswer answer,
                           generate_locally(engine, std::move(prompt), sampling, [](std::string_view) {}));
    if (answer.finish == FinishReason::kCancelled) {
      return make_status(StatusCode::kCancelled, "stopped in document {}; nothing was written", read + 1);
    }
  }
  FOVEA_ASSIGN_OR_RETURN(const KeyCodes codes, made.profiler->codes());
  FOVEA_RETURN_IF_ERROR(write_output(s.out, to_json(codes, engine.model_name())));
  if (s.out != "-") {
    fmt::print("{}: {} layers of {} KV heads, learned of {} tokens of text (documents: {})\n", s.out,
               codes.codes.size() / static_cast<std::size_t>(codes.num_kv_heads), codes.num_kv_heads, tokens, read);
  }
  return ok_status();
}

}  // namespace

RunFunction declare_profile_keys(Options& options) {
  auto state = std::make_shared<ProfileState>();
  options.add("context", state->context,
              "Tokens of a document; as many as requests will have, if the machine reads them");
  options.add("documents", state->documents, "Documents to read");
  options.add("seed", state->eval.seed, "Other seed, other documents");
  options.add("text", state->text_file, "Read this text instead, cut into documents; - is stdin");
  options.add("out", state->out, "Write the sketch here, for --key-sketch or the model's folder; - is stdout");
  state->engine.options.itl_target_ms = 0.0f;  // nobody reads along
  state->engine.declare(options);
  options.examples(
      "  fovea profile keys --model ./Qwen3-4B --context 32768 --out Qwen3-4B/key_sketch.json\n"
      "  fovea serve --model ./Qwen3-4B --sparse fovea --kv-budget 4096");
  return [state] {
    const Status status = profile_keys(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
