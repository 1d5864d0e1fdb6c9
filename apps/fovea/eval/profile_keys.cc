// `fovea profile keys`: the key sketch of a model, by which page selection (--sparse fovea) finds what a query needs,
// learned while the model reads documents.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/random.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "engine/engine_core.h"
#include "engine_flags.h"
#include "eval/needle.h"

namespace fovea::app {
namespace {

struct ProfileState {
  EngineFlags engine;
  std::int32_t context = 8192, documents = 8;
  std::uint64_t seed = 0;
  std::string text_file, out = kKeyCodesFile;
};

using Prompt = std::vector<std::int32_t>;

// A document with a question about it: what a query looks for is what it will look for.
Result<Prompt> question_prompt(const Engine& engine, const ProfileState& s, std::int32_t number) {
  NeedleEvalOptions eval;
  eval.seed = s.seed;
  eval.spec.split = NeedleSplit::kTrain;
  eval.spec.filler = NeedleFiller::kMixed;
  FOVEA_ASSIGN_OR_RETURN(const NeedleDocument document,
                         needle_document(engine, eval, s.context, static_cast<std::uint64_t>(number), 1));
  const std::string text = document.text + "\n\n" + document.questions[0].question;
  return engine.chat_template().empty() ? engine.encode(text, true) : engine.encode_chat({{"user", text}}, true, "");
}

// Random weights have no words.
Prompt random_prompt(const Engine& engine, const ProfileState& s, std::int32_t number) {
  PhiloxRng rng(s.seed * 1000003 + static_cast<std::uint64_t>(number));
  Prompt prompt;
  for (std::int32_t i = 0; i + 1 < s.context; ++i)
    prompt.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(engine.vocab_size()))));
  return prompt;
}

Result<std::vector<Prompt>> make_prompts(const Engine& engine, const ProfileState& s) {
  std::vector<Prompt> prompts;
  if (!s.text_file.empty()) {
    std::string text;
    FOVEA_RETURN_IF_ERROR(read_input(s.text_file, &text));
    FOVEA_ASSIGN_OR_RETURN(const Prompt tokens, engine.encode(text, false));
    if (tokens.empty()) return invalid_argument("{} has no text", s.text_file);
    // One after the other, as many as there are.
    const auto length = static_cast<std::size_t>(s.context - 1);
    for (std::size_t begin = 0; begin < tokens.size() && prompts.size() < static_cast<std::size_t>(s.documents);
         begin += length) {
      const std::size_t end = std::min(begin + length, tokens.size());
      prompts.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                           tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
    return prompts;
  }
  const bool has_words = engine.encode("a", false).ok();
  for (std::int32_t number = 0; number < s.documents; ++number) {
    if (has_words) {
      FOVEA_ASSIGN_OR_RETURN(Prompt prompt, question_prompt(engine, s, number));
      prompts.push_back(std::move(prompt));
    } else {
      prompts.push_back(random_prompt(engine, s, number));
    }
  }
  return prompts;
}

// Returns when the model has read the prompt.
Status read_prompt(Engine& engine, Prompt prompt) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Status> ended;
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0.0f;
  const Result<RequestId> id = engine.submit(std::move(request), [&](const GenerationEvent& event) {
    if (event.finish == FinishReason::kNone) return;
    const std::lock_guard lock(mutex);
    ended = event.finish == FinishReason::kError ? event.error : ok_status();
    changed.notify_all();
  });
  if (!id.ok()) return id.status();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended.has_value(); });
  return *ended;
}

Status check(const ProfileState& s) {
  if (s.context < 256) return invalid_argument("context is {} tokens, expected 256 or more", s.context);
  if (s.documents < 1) return invalid_argument("documents is {}, expected 1 or more", s.documents);
  if (s.engine.starts_ranks()) return unsupported("profile keys runs in one process; leave out --tp");
  return check_output(s.out);
}

Status profile_keys(ProfileState& s) {
  FOVEA_RETURN_IF_ERROR(check(s));
  EngineOptions options = s.engine.resolved();
  options.prefix_cache = false;  // what is read again counts again
  FOVEA_ASSIGN_OR_RETURN(const ProfilingEngine made, create_profiling_engine(options));
  if (s.context > made.engine->max_context()) {
    return out_of_range("context is {} tokens, but {} takes at most {}; lower --context or raise --max-context",
                        s.context, made.engine->model_name(), made.engine->max_context());
  }
  FOVEA_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, make_prompts(*made.engine, s));
  std::int64_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += static_cast<std::int64_t>(prompt.size());
  {
    Progress bar("reading documents", tokens, "tokens");
    std::int64_t read = 0;
    for (const Prompt& prompt : prompts) {
      FOVEA_RETURN_IF_ERROR(read_prompt(*made.engine, prompt));
      bar.set(read += static_cast<std::int64_t>(prompt.size()));
    }
  }
  FOVEA_ASSIGN_OR_RETURN(const KeyCodes codes, made.profiler->codes());
  FOVEA_RETURN_IF_ERROR(write_output(s.out, to_json(codes, made.engine->model_name())));
  if (s.out != "-") {
    fmt::print("{}: {} layers of {} KV heads, from {} documents, {} tokens\n", s.out,
               codes.codes.size() / static_cast<std::size_t>(codes.num_kv_heads), codes.num_kv_heads, prompts.size(),
               tokens);
  }
  return ok_status();
}

}  // namespace

RunFunction declare_profile_keys(Options& options) {
  auto state = std::make_shared<ProfileState>();
  options.add("context", state->context,
              "Tokens of a document; as many as requests will have, if the machine reads them");
  options.add("documents", state->documents, "Documents to read");
  options.add("seed", state->seed, "Other seed, other documents");
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
