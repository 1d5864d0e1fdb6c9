// `fovea eval compare`: the same greedy answers with and without page selection, on the user's own model and text: how
// many are equal, how far the distributions of the next token are apart, and how many pages were read.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "eval/sparse.h"

namespace fovea::app {
namespace {

// Alternatives of the next token that are compared one by one; the rest of the probability is compared as a whole.
constexpr std::int32_t kAlternatives = 20;

struct CompareState {
  EngineFlags engine;
  std::string text_file, json;
  std::vector<std::string> questions;
  std::int32_t context = 4096, samples = 8, answer_tokens = 32;
};

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::int32_t selecting = 1;  // last tokens of it that select
};

struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<TokenLogprob>> alternatives;
  GenerationEvent last;
};

struct Difference {
  std::int32_t equal_tokens = 0;  // before the first that differs
  bool equal = false;
  double kl_sum = 0.0, kl_most = 0.0;
  std::int32_t steps = 0;  // compared: those with the same tokens before them
};

struct Comparison {
  std::vector<Difference> samples;
  EngineStats before, after;  // of the selecting answers
};

Result<std::vector<Prompt>> questions_about(const Engine& engine, const std::string& text,
                                            const std::vector<std::string>& questions) {
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> alone, engine.encode_chat({{"user", text}}, true, ""));
  std::vector<Prompt> prompts;
  for (const std::string& question : questions) {
    Prompt prompt;
    FOVEA_ASSIGN_OR_RETURN(prompt.tokens, engine.encode_chat({{"user", text + "\n\n" + question}}, true, ""));
    const auto differs = std::mismatch(prompt.tokens.begin(), prompt.tokens.end(), alone.begin(), alone.end()).first;
    prompt.selecting = static_cast<std::int32_t>(prompt.tokens.end() - differs);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Windows of the text, evenly spread, to be continued.
Result<std::vector<Prompt>> windows_of(const Engine& engine, const std::string& text, std::int32_t context,
                                       std::int32_t samples) {
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> tokens, engine.encode(text, false));
  if (tokens.size() < static_cast<std::size_t>(context)) {
    return invalid_argument("the text has {} tokens, --context asks for {}; give more text or lower --context",
                            tokens.size(), context);
  }
  std::vector<Prompt> prompts;
  const std::size_t room = tokens.size() - static_cast<std::size_t>(context);
  for (std::int32_t i = 0; i < samples; ++i) {
    const std::size_t begin = samples == 1 ? 0 : room * static_cast<std::size_t>(i) / (samples - 1);
    Prompt prompt;
    prompt.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                         tokens.begin() + static_cast<std::ptrdiff_t>(begin + context));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Result<Answer> answer(Engine& engine, const Prompt& prompt, std::int32_t max_tokens, bool sparse) {
  GenerateRequest request;
  request.prompt = prompt.tokens;
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = max_tokens;
  request.sampling.logprobs = kAlternatives;
  request.sparse_prompt_tokens = sparse ? prompt.selecting : 0;
  // What one answer computed must not stand in the cache for the other, which reads other pages.
  request.cache_salt = sparse ? "compare selecting" : "compare dense";
  if (!sparse) request.sparse = "off";
  Answer made;
  std::promise<void> done;
  const Result<RequestId> id = engine.submit(std::move(request), [&](const GenerationEvent& event) {
    made.tokens.insert(made.tokens.end(), event.tokens.begin(), event.tokens.end());
    made.alternatives.insert(made.alternatives.end(), event.top_logprobs.begin(), event.top_logprobs.end());
    if (event.finish == FinishReason::kNone) return;
    made.last = event;
    done.set_value();
  });
  if (!id.ok()) return id.status();
  done.get_future().wait();
  if (made.last.finish == FinishReason::kError) return made.last.error;
  return made;
}

// Kullback-Leibler divergence of `from` against `to`, nats: over the tokens that both list, and the rest as one.
double divergence(const std::vector<TokenLogprob>& from, const std::vector<TokenLogprob>& to) {
  double kl = 0.0;
  double rest_from = 1.0;
  double rest_to = 1.0;
  for (const TokenLogprob& a : from) {
    const auto b = std::find_if(to.begin(), to.end(), [&](const TokenLogprob& t) { return t.token == a.token; });
    if (b == to.end()) continue;
    const double p = std::exp(double{a.logprob});
    kl += p * (double{a.logprob} - b->logprob);
    rest_from -= p;
    rest_to -= std::exp(double{b->logprob});
  }
  constexpr double kLeast = 1e-9;
  rest_from = std::max(rest_from, kLeast);
  return std::max(0.0, kl + rest_from * std::log(rest_from / std::max(rest_to, kLeast)));
}

Difference compare(const Answer& dense, const Answer& sparse) {
  Difference difference;
  const std::size_t steps = std::min(dense.alternatives.size(), sparse.alternatives.size());
  for (std::size_t i = 0; i < steps; ++i) {
    const double kl = divergence(dense.alternatives[i], sparse.alternatives[i]);
    difference.kl_sum += kl;
    difference.kl_most = std::max(difference.kl_most, kl);
    ++difference.steps;
    if (dense.tokens[i] != sparse.tokens[i]) break;
    ++difference.equal_tokens;
  }
  difference.equal = dense.tokens == sparse.tokens;
  return difference;
}

Result<Comparison> run(Engine& engine, const CompareState& s, const std::vector<Prompt>& prompts) {
  FOVEA_ASSIGN_OR_RETURN(std::optional<SparseCheck> check, SparseCheck::create(s.engine.options));
  Comparison comparison;
  std::vector<Answer> dense;
  Progress bar("answers", 2 * static_cast<std::int64_t>(prompts.size()));
  std::int64_t done = 0;
  for (const Prompt& prompt : prompts) {
    FOVEA_ASSIGN_OR_RETURN(Answer made, answer(engine, prompt, s.answer_tokens, false));
    dense.push_back(std::move(made));
    bar.set(++done);
  }
  engine.flush_cache();  // returns between steps, so that the counts are complete
  comparison.before = engine.stats();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const Answer made, answer(engine, prompts[i], s.answer_tokens, true));
    check->add(made.last, prompts[i].selecting);
    comparison.samples.push_back(compare(dense[i], made));
    bar.set(++done);
  }
  engine.flush_cache();
  comparison.after = engine.stats();
  FOVEA_RETURN_IF_ERROR(check->check(comparison.before, comparison.after));
  return comparison;
}

Status report(const CompareState& s, const Comparison& c) {
  std::int32_t equal = 0;
  std::int32_t steps = 0;
  double kl = 0.0;
  double most = 0.0;
  nlohmann::json samples = nlohmann::json::array();
  for (const Difference& d : c.samples) {
    equal += d.equal ? 1 : 0;
    steps += d.steps;
    kl += d.kl_sum;
    most = std::max(most, d.kl_most);
    samples.push_back(
        {{"equal", d.equal}, {"equal_tokens", d.equal_tokens}, {"kl_mean", d.kl_sum / std::max(d.steps, 1)}});
  }
  kl /= std::max(steps, 1);
  const std::uint64_t read = c.after.sparse_pages_read - c.before.sparse_pages_read;
  const std::uint64_t kept = c.after.sparse_pages_kept - c.before.sparse_pages_kept;
  if (s.json != "-") {
    fmt::print("{} of {} answers equal to dense ones\n", equal, c.samples.size());
    fmt::print(
        "next token: KL divergence {:.5f} nats on average, {:.5f} at most, over {} tokens with equal ones before\n", kl,
        most, steps);
    if (kept == 0) {
      fmt::print("no query saw more than its budget of {}: all pages were read\n", s.engine.options.kv_budget);
    } else {
      fmt::print("{} of {} pages read by queries that select ({:.1f} %)\n", read, kept,
                 100.0 * static_cast<double>(read) / static_cast<double>(kept));
    }
  }
  if (s.json.empty()) return ok_status();
  const nlohmann::json out = {{"policy", s.engine.options.sparse},
                              {"kv_budget", s.engine.options.kv_budget},
                              {"answers", c.samples.size()},
                              {"equal", equal},
                              {"kl_mean", kl},
                              {"kl_most", most},
                              {"steps", steps},
                              {"pages_read", read},
                              {"pages_kept", kept},
                              {"samples", std::move(samples)}};
  return write_output(s.json, out.dump() + "\n");
}

Status run_compare(CompareState& s) {
  if (s.text_file.empty()) return invalid_argument("--text FILE is what is compared on; - is stdin");
  if (s.engine.options.sparse == "off") {
    return invalid_argument("--sparse is off, so both answers would be dense; give auto or a policy: {}",
                            select_policy_names());
  }
  if (s.samples < 1 || s.answer_tokens < 1 || s.context < 1) {
    return invalid_argument("samples is {}, answer-tokens {}, context {}; expected 1 or more", s.samples,
                            s.answer_tokens, s.context);
  }
  FOVEA_RETURN_IF_ERROR(check_output(s.json));
  std::string text;
  FOVEA_RETURN_IF_ERROR(read_input(s.text_file, &text));
  FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, s.engine.create());
  FOVEA_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, s.questions.empty()
                                                                ? windows_of(*engine, text, s.context, s.samples)
                                                                : questions_about(*engine, text, s.questions));
  FOVEA_ASSIGN_OR_RETURN(const Comparison comparison, run(*engine, s, prompts));
  return report(s, comparison);
}

}  // namespace

RunFunction declare_eval_compare(Options& options) {
  auto state = std::make_shared<CompareState>();
  options.add("text", state->text_file, "Text to compare on; - is stdin");
  options.add("question", state->questions, "Asked about the whole text; without any, windows of it are continued");
  options.add("context", state->context, "Tokens of a window");
  options.add("samples", state->samples, "Windows");
  options.add("answer-tokens", state->answer_tokens, "Tokens of an answer, at most");
  options.add("json", state->json, "Write the figures as JSON here; - is stdout");
  state->engine.options.sparse = "auto";
  state->engine.options.itl_target_ms = 0.0f;  // nobody reads along, and figures do not depend on the clock
  state->engine.declare(options);
  options.examples(
      "  fovea eval compare --text notes.txt --sparse auto --kv-budget T/8\n"
      "  fovea eval compare --model ./Qwen3-4B --text book.txt --context 16384 --kv-budget 2048\n"
      "  fovea eval compare --text notes.txt --question \"Who is the keeper of the northern gate?\"");
  return [state] {
    const Status status = run_compare(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
