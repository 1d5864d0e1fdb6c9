// `fovea profile heads`: which KV heads of a model can stream, found by asking questions about long documents with one
// head at a time looking at sinks and recent tokens only, then with all harmless ones together.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/quote.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "engine/model/head_search.h"
#include "engine_flags.h"
#include "eval/needle.h"

namespace fovea::app {
namespace {

struct ProfileState {
  EngineFlags engine;
  NeedleEvalOptions eval;
  std::int32_t context = 8192;
  std::int32_t sinks = 64, local = 256, prefill_local = 0;
  double loss = 0.0;
  std::string out;
};

Status check(const ProfileState& s) {
  const std::string& streaming = s.engine.options.streaming;
  if (!streaming.empty() && streaming != "off") {
    return invalid_argument("--streaming is {}, but this command looks for the heads that stream; leave it out",
                            quote(streaming));
  }
  if (s.sinks < 0) return invalid_argument("sinks is {}, expected 0 tokens or more", s.sinks);
  if (s.local < 1) return invalid_argument("local is {}, expected 1 token or more", s.local);
  if (s.prefill_local != 0 && s.prefill_local < s.local) {
    return invalid_argument("prefill-local is {}, expected at least local ({}), or 0", s.prefill_local, s.local);
  }
  if (!(s.loss >= 0.0 && s.loss <= 1.0)) return invalid_argument("loss is {}, expected 0 to 1", s.loss);
  return check_output(s.out);
}

Result<HeadScore> ask_with(ProfileState& s, const HeadProfile& profile, Progress& bar, std::int64_t& asked) {
  s.engine.options.streaming = profile.streaming.empty() ? "off" : to_json(profile);
  FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, s.engine.create());
  FOVEA_ASSIGN_OR_RETURN(const NeedleReport report,
                         evaluate_needle(*engine, s.eval, [&](std::int64_t, std::int64_t) { bar.set(++asked); }));
  HeadScore score;
  score.right = report.scores[0].total.accuracy();
  for (const NeedleAnswer& answer : report.answers) score.confidence += answer.logprob;
  score.confidence /= static_cast<double>(std::max<std::size_t>(report.answers.size(), 1));
  return score;
}

std::string table(const HeadSearch& search) {
  std::string text = fmt::format("{:<18} {:>7} {:>7} {:>11}\n", "streaming", "right", "lost", "confidence");
  const auto line = [&](const std::string& name, const HeadScore& score) {
    text += fmt::format("{:<18} {:>7.3f} {:>+7.3f} {:>11.4f}\n", name, score.right, search.dense.right - score.right,
                        score.confidence);
  };
  line("none", search.dense);
  for (const HeadSearch::Trial& trial : search.alone) {
    line(fmt::format("layer {} head {}", trial.head.layer, trial.head.kv_head), trial.score);
  }
  line(fmt::format("{} of {} together", search.streaming.size(), search.alone.size()), search.together);
  return text;
}

Status profile_heads(ProfileState& s) {
  FOVEA_RETURN_IF_ERROR(check(s));
  s.eval.contexts = {s.context};
  s.eval.logprobs = true;
  HeadProfile profile;
  profile.sink_tokens = s.sinks;
  profile.local_tokens = s.local;
  profile.prefill_local_tokens = s.prefill_local;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  {
    s.engine.options.streaming = "off";
    FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, s.engine.create());
    profile.model = engine->model_name();
    layers = engine->stats().layers;
    heads = engine->stats().kv_heads;
    profile.num_layers = layers;
    profile.num_kv_heads = heads;
  }
  std::int64_t asked = 0;
  Result<HeadSearch> search = [&] {
    Progress bar("answers", std::int64_t{s.eval.questions} * (2 + std::int64_t{layers} * heads));
    return find_streaming_heads(layers, heads, s.loss, [&](const std::vector<ModelHead>& streaming) {
      profile.streaming = streaming;
      return ask_with(s, profile, bar, asked);
    });
  }();
  if (!search.ok()) return search.status();
  profile.streaming = search->streaming;
  if (s.out != "-") fmt::print("{}", table(*search));
  return s.out.empty() ? ok_status() : write_output(s.out, to_json(profile));
}

}  // namespace

RunFunction declare_profile_heads(Options& options) {
  auto state = std::make_shared<ProfileState>();
  state->eval.questions = 50;
  options.add("context", state->context, "Tokens of document and question");
  options.add("questions", state->eval.questions, "Questions for each set of heads");
  options.add("seed", state->eval.seed, "Other seed, other documents");
  options.add("sinks", state->sinks, "Leading tokens that a streaming head sees; whole blocks of 64");
  options.add("local", state->local, "Recent tokens that it sees");
  options.add("prefill-local", state->prefill_local, "Recent tokens that prompt tokens see; 0: the same");
  options.add("loss", state->loss, "Share of right answers that may be lost, by each head alone and together");
  options.add("out", state->out, "Write the profile here, for --streaming; - is stdout");
  state->engine.options.itl_target_ms = 0.0f;  // nobody reads along, and figures do not depend on the clock
  state->engine.declare(options);
  options.examples(
      "  fovea profile heads --context 8192 --questions 50 --out heads.json\n"
      "  fovea eval needle --context 16384 --streaming heads.json");
  return [state] {
    const Status status = profile_heads(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
