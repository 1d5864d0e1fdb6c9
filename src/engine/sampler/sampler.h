// Sampler: from a row of logits to the next token of one choice, with penalties, bias, temperature, top-k, top-p and
// min-p, in that order, and log-probabilities. Called by the engine after each forward. A token depends on the logits,
// the seed and the position alone, never on who shares the batch.
//
// Parameters mean what they mean in the OpenAI API, and where it has none, in vLLM and SGLang: presence and frequency
// penalties count generated tokens, the repetition penalty (CTRL, 1909.05858) prompt and generated ones; top-p keeps
// the smallest set of what top-k left whose probability reaches p (1904.09751); min-p drops what is less likely than
// min_p times the likeliest (2407.01082); log-probabilities are the model's own, before all of this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/sampler/draw.h"
#include "fovea/engine.h"
#include "fovea/status.h"

namespace fovea {

// kInvalidArgument names the parameter, its value and what was expected; *parameter (may be null) becomes its name.
Status check_sampling(const SamplingParams& params, std::int32_t vocab_size, std::string* parameter = nullptr);

// What sampling remembers of one choice.
class SamplingState {
 public:
  // seed: the choice's own. eos_tokens: may not be sampled before min_tokens.
  SamplingState(const SamplingParams& params, std::uint64_t seed, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> eos_tokens);

  const SamplingParams& params() const { return params_; }
  // The largest logit as it is decides, now and later, and nobody asks for more.
  bool is_plain_greedy() const;
  // How a device draws the same tokens; of one that draws() only where it can.
  DrawSetting draw_setting() const;
  std::uint64_t seed() const { return seed_; }
  std::int32_t num_generated() const { return num_generated_; }
  void add_token(std::int32_t token);

 private:
  friend class Sampler;
  // Nothing is added to logits, and nobody asks for them.
  bool takes_logits_as_they_are() const;

  SamplingParams params_;
  std::uint64_t seed_;
  std::int32_t num_generated_ = 0;
  std::vector<std::int32_t> forbidden_at_first_;              // until min_tokens
  std::vector<std::int32_t> prompt_tokens_;                   // without repeats; only with a repetition penalty
  std::unordered_map<std::int32_t, std::int32_t> generated_;  // token -> times; only with a penalty
};

struct SampledToken {
  std::int32_t token = 0;
  float logprob = 0.0f;           // natural log; only with params.logprobs >= 0
  std::vector<TokenLogprob> top;  // the params.logprobs likeliest, likeliest first
  std::int32_t rank = 0;          // of score(): the place that the token would have there, from 1 on
};

class Sampler {
 public:
  explicit Sampler(std::int32_t vocab_size);

  // logits: [vocab_size], finite or -inf. kInternal when none is finite. Does not change the state. allowed: a bit a
  // token (bit id % 32 of word id / 32); empty: any token. Where it leaves but tokens that min_tokens forbids, one of
  // them is taken. attempt: tokens drawn here before, and not taken; each is drawn by itself.
  Result<SampledToken> sample(std::span<const float> logits, const SamplingState& state,
                              std::span<const std::int32_t> allowed = {}, std::uint32_t attempt = 0);

  // Of a token that was not sampled: its log probability and rank, and the `top` likeliest.
  SampledToken score(std::span<const float> logits, std::int32_t token, std::int32_t top);

 private:
  struct Candidate {
    float logit;
    std::int32_t token;
  };
  struct Likelier {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
    }
  };

  // The logits with penalties and bias, -inf where they are forbidden, in scratch_.
  void apply_penalties(std::span<const float> logits, const SamplingState& state, bool forbid_at_first,
                       std::span<const std::int32_t> allowed);
  // Candidates that top-k, top-p and min-p leave, in an order that depends on the logits alone.
  void select(std::span<const float> logits, const SamplingParams& params, float max_logit);
  void select_top_k(std::span<const float> logits, const SamplingParams& params, float max_logit);
  void select_top_p(std::span<const float> logits, const SamplingParams& params, float max_logit);
  // Fills the log probability of result's token, and the `top` likeliest.
  void add_logprobs(std::span<const float> logits, float max_logit, std::int32_t top, SampledToken* result);
  std::int32_t draw_from_all(std::span<const float> logits, float max_logit, float temperature, double u);

  std::vector<float> scratch_;  // [vocab_size] logits with penalties
  std::vector<float> weights_;  // [vocab_size] exp((logit - max) / temperature)
  std::vector<Candidate> candidates_;
  std::vector<Candidate> boundary_;
};

}  // namespace fovea
