// Sampling without sorting the vocabulary: candidates are picked by a threshold on the logits that widens until they
// carry enough probability, and only they are sorted.
#include "engine/sampler/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "engine/sampler/vector_math.h"

namespace fovea {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // as good as greedy, and its inverse is finite
constexpr float kFarthest = 1000.0f;   // temperatures below the maximum: as good as impossible
constexpr std::size_t kBuckets = 1024;
constexpr float kBucketsPerUnit = 16.0f;  // of logit / temperature

// Whole characters, so that cutting before or after the string never splits one.
bool is_utf8(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

// Checks parameters one after another and keeps the first that is wrong.
class ParameterCheck {
 public:
  explicit ParameterCheck(std::string* parameter) : parameter_(parameter) {}

  template <typename... Args>
  void require(bool holds, const char* name, fmt::format_string<Args...> format, Args&&... args) {
    if (holds || !status_.ok()) return;
    if (parameter_ != nullptr) *parameter_ = name;
    status_ = invalid_argument(format, std::forward<Args>(args)...);
  }
  template <typename T>
  void range(const char* name, T value, T low, T high) {
    require(value >= low && value <= high, name, "{} is {}; expected {} to {}", name, value, low, high);
  }
  Status take() { return std::move(status_); }

 private:
  std::string* parameter_;
  Status status_;
};

}  // namespace

Status check_sampling(const SamplingParams& params, std::int32_t vocab_size, std::string* parameter) {
  ParameterCheck check(parameter);
  check.range("temperature", params.temperature, 0.0f, 100.0f);
  check.require(params.top_p > 0.0f && params.top_p <= 1.0f, "top_p", "top_p is {}; expected more than 0 and at most 1",
                params.top_p);
  check.require(params.top_k >= 0, "top_k", "top_k is {}; expected 0 (off) or more", params.top_k);
  check.range("min_p", params.min_p, 0.0f, 1.0f);
  check.range("presence_penalty", params.presence_penalty, -2.0f, 2.0f);
  check.range("frequency_penalty", params.frequency_penalty, -2.0f, 2.0f);
  check.range("repetition_penalty", params.repetition_penalty, 0.01f, 100.0f);
  check.require(params.max_tokens >= 0, "max_tokens", "max_tokens is {}; expected 0 (the rest of the context) or more",
                params.max_tokens);
  check.require(params.min_tokens >= 0 && (params.max_tokens <= 0 || params.min_tokens <= params.max_tokens),
                "min_tokens", "min_tokens is {}; expected 0 to max_tokens ({})", params.min_tokens, params.max_tokens);
  check.range("logprobs", params.logprobs, -1, kMaxTopLogprobs);
  check.require(params.stop.size() <= kMaxStopStrings, "stop", "{} stop strings; expected at most {}",
                params.stop.size(), kMaxStopStrings);
  for (const std::string& stop : params.stop) {
    check.require(!stop.empty() && stop.size() <= kMaxStopBytes, "stop", "a stop string has {} bytes; expected 1 to {}",
                  stop.size(), kMaxStopBytes);
    check.require(is_utf8(stop), "stop", "a stop string is not UTF-8");
  }
  for (const std::int32_t token : params.stop_token_ids) {
    check.require(token >= 0 && token < vocab_size, "stop_token_ids",
                  "stop_token_ids holds {}; expected token ids 0 to {}", token, vocab_size - 1);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    check.require(token >= 0 && token < vocab_size, "logit_bias", "logit_bias names token {}; expected 0 to {}", token,
                  vocab_size - 1);
    check.range("logit_bias", bias, -100.0f, 100.0f);
  }
  return check.take();
}

SamplingState::SamplingState(const SamplingParams& params, std::uint64_t seed, std::span<const std::int32_t> prompt,
                             std::span<const std::int32_t> eos_tokens)
    : params_(params), seed_(seed) {
  if (params.min_tokens > 0) {
    if (!params.ignore_eos) forbidden_at_first_.assign(eos_tokens.begin(), eos_tokens.end());
    forbidden_at_first_.insert(forbidden_at_first_.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  }
  if (params.repetition_penalty != 1.0f) {
    prompt_tokens_.assign(prompt.begin(), prompt.end());
    std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
    prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()), prompt_tokens_.end());
  }
}

bool SamplingState::takes_logits_as_they_are() const {
  const SamplingParams& p = params_;
  return p.presence_penalty == 0.0f && p.frequency_penalty == 0.0f && p.repetition_penalty == 1.0f &&
         p.logit_bias.empty() && forbidden_at_first_.empty() && p.logprobs < 0;
}

bool SamplingState::is_plain_greedy() const { return takes_logits_as_they_are() && params_.temperature < kGreedyBelow; }

DrawSetting SamplingState::draw_setting() const {
  const SamplingParams& p = params_;
  if (!takes_logits_as_they_are() || p.temperature < kGreedyBelow || p.top_k > 0) return {};
  return {p.temperature, p.top_p, p.min_p, seed_};
}

void SamplingState::add_token(std::int32_t token) {
  ++num_generated_;
  if (params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f || params_.repetition_penalty != 1.0f) {
    ++generated_[token];
  }
}

Sampler::Sampler(std::int32_t vocab_size) : scratch_(vocab_size), weights_(vocab_size) {}

void Sampler::apply_penalties(std::span<const float> logits, const SamplingState& state, bool forbid_at_first,
                              std::span<const std::int32_t> allowed) {
  const SamplingParams& params = state.params_;
  std::copy(logits.begin(), logits.end(), scratch_.begin());
  if (params.repetition_penalty != 1.0f) {
    const auto repel = [&](std::int32_t token) {
      float& logit = scratch_[token];
      logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    };
    for (const std::int32_t token : state.prompt_tokens_) repel(token);
    for (const auto& [token, times] : state.generated_) {
      if (!std::binary_search(state.prompt_tokens_.begin(), state.prompt_tokens_.end(), token)) repel(token);
    }
  }
  for (const auto& [token, times] : state.generated_) {
    scratch_[token] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(times);
  }
  for (const auto& [token, bias] : params.logit_bias) scratch_[token] += bias;
  if (forbid_at_first) {
    for (const std::int32_t token : state.forbidden_at_first_) scratch_[token] = kLowest;
  }
  for (std::size_t word = 0; word < allowed.size(); ++word) {
    const auto bits = static_cast<std::uint32_t>(allowed[word]);
    if (bits == ~std::uint32_t{0}) continue;
    const std::size_t begin = word * 32, count = std::min<std::size_t>(32, scratch_.size() - begin);
    for (std::size_t bit = 0; bit < count; ++bit) {
      if ((bits >> bit & 1) == 0) scratch_[begin + bit] = kLowest;
    }
  }
}

void Sampler::select_top_k(std::span<const float> logits, const SamplingParams& params, float max_logit) {
  const auto top_k = std::min(static_cast<std::size_t>(params.top_k), logits.size());
  // Everything within a reach of the maximum that widens until it holds k.
  for (float reach = 8.0f * params.temperature;; reach *= 4.0f) {
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= max_logit - reach) candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
    }
    if (candidates_.size() >= top_k || reach >= kFarthest * params.temperature) break;
  }
  if (candidates_.size() > top_k) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(top_k), candidates_.end(),
                     Likelier());
    candidates_.resize(top_k);
  }
  if (params.top_p >= 1.0f) return;
  std::sort(candidates_.begin(), candidates_.end(), Likelier());
  const float inverse = 1.0f / params.temperature;
  double total = 0.0;
  for (const Candidate& c : candidates_) total += exp_nonpositive((c.logit - max_logit) * inverse);
  double mass = 0.0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || mass < params.top_p * total)) {
    mass += exp_nonpositive((candidates_[kept++].logit - max_logit) * inverse);
  }
  candidates_.resize(kept);
}

void Sampler::select_top_p(std::span<const float> logits, const SamplingParams& params, float max_logit) {
  const float inverse = 1.0f / params.temperature;
  const double wanted = params.top_p * row_exp(logits, max_logit, inverse, weights_);
  // Probability by distance from the maximum; only the bucket in which the set ends is sorted.
  const auto bucket_of = [&](float logit) {
    const float distance = (max_logit - logit) * inverse * kBucketsPerUnit;
    return distance < static_cast<float>(kBuckets - 1) ? static_cast<std::size_t>(distance) : kBuckets - 1;
  };
  std::array<double, kBuckets> mass{};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] > 0.0f) mass[bucket_of(logits[i])] += weights_[i];
  }
  std::size_t last = 0;
  double before = 0.0;  // in the buckets nearer than `last`
  while (last + 1 < kBuckets && before + mass[last] < wanted) before += mass[last++];
  candidates_.clear();
  boundary_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] == 0.0f) continue;
    const std::size_t bucket = bucket_of(logits[i]);
    if (bucket > last) continue;
    (bucket < last ? candidates_ : boundary_).push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  std::sort(boundary_.begin(), boundary_.end(), Likelier());
  for (const Candidate& c : boundary_) {
    if (!candidates_.empty() && before >= wanted) break;
    before += weights_[c.token];
    candidates_.push_back(c);
  }
}

void Sampler::select(std::span<const float> logits, const SamplingParams& params, float max_logit) {
  const float min_p_reach = params.min_p > 0.0f ? -std::log(params.min_p) * params.temperature : kFarthest;
  if (params.top_k > 0) {
    select_top_k(logits, params, max_logit);
  } else if (params.top_p < 1.0f) {
    select_top_p(logits, params, max_logit);
  } else {
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= max_logit - min_p_reach) candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
    }
  }
  if (params.min_p > 0.0f) {
    std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < max_logit - min_p_reach; });
  }
}

std::int32_t Sampler::draw_from_all(std::span<const float> logits, float max_logit, float temperature, double u) {
  const double target = u * row_exp(logits, max_logit, 1.0f / temperature, weights_);
  double sum = 0.0;
  std::int32_t last = 0;
  for (std::size_t begin = 0; begin < weights_.size(); begin += 256) {
    const std::size_t end = std::min(weights_.size(), begin + 256);
    float block = 0.0f;
    for (std::size_t i = begin; i < end; ++i) block += weights_[i];
    if (sum + block > target) {
      for (std::size_t i = begin; i < end; ++i) {
        if (weights_[i] == 0.0f) continue;
        last = static_cast<std::int32_t>(i);
        sum += weights_[i];
        if (sum > target) return last;
      }
      continue;
    }
    if (block > 0.0f) {
      for (std::size_t i = end; i > begin; --i) {
        if (weights_[i - 1] == 0.0f) continue;
        last = static_cast<std::int32_t>(i - 1);
        break;
      }
    }
    sum += block;
  }
  return last;  // rounding left the target beyond the last sum
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingState& state,
                                     std::span<const std::int32_t> allowed, std::uint32_t attempt) {
  const SamplingParams& params = state.params_;
  const bool at_first = state.num_generated_ < params.min_tokens && !state.forbidden_at_first_.empty();
  const bool changed = !state.generated_.empty() || !state.prompt_tokens_.empty() || !params.logit_bias.empty() ||
                       at_first || !allowed.empty();
  std::span<const float> row = logits;
  if (changed) {
    apply_penalties(logits, state, at_first, allowed);
    row = scratch_;
  }
  float max_logit = row_max(row);
  if (at_first && !allowed.empty() && !std::isfinite(max_logit)) {
    apply_penalties(logits, state, false, allowed);
    max_logit = row_max(row);
  }
  if (!std::isfinite(max_logit)) return internal_error("the model's logits are not finite (largest: {})", max_logit);

  SampledToken result;
  if (params.temperature < kGreedyBelow) {
    result.token = static_cast<std::int32_t>(std::find(row.begin(), row.end(), max_logit) - row.begin());
  } else {
    const std::uint64_t seed = attempt == 0 ? state.seed_ : hash_combine(state.seed_, attempt);
    const double u = sampling_uniform(seed, state.num_generated_);
    if (params.top_k == 0 && params.top_p >= 1.0f && params.min_p <= 0.0f) {
      result.token = draw_from_all(row, max_logit, params.temperature, u);
    } else {
      select(row, params, max_logit);
      const float inverse = 1.0f / params.temperature;
      double total = 0.0;
      for (const Candidate& c : candidates_) total += exp_nonpositive((c.logit - max_logit) * inverse);
      double sum = 0.0;
      result.token = candidates_.front().token;
      for (const Candidate& c : candidates_) {
        const float weight = exp_nonpositive((c.logit - max_logit) * inverse);
        if (weight == 0.0f) continue;
        result.token = c.token;
        sum += weight;
        if (sum > u * total) break;
      }
    }
  }
  if (params.logprobs < 0) return result;

  add_logprobs(logits, changed ? row_max(logits) : max_logit, params.logprobs, &result);
  return result;
}

SampledToken Sampler::score(std::span<const float> logits, std::int32_t token, std::int32_t top) {
  SampledToken result;
  result.token = token;
  add_logprobs(logits, row_max(logits), top, &result);
  const Candidate own{logits[token], token};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    result.rank += Likelier()({logits[i], static_cast<std::int32_t>(i)}, own) ? 1 : 0;
  }
  ++result.rank;
  return result;
}

void Sampler::add_logprobs(std::span<const float> logits, float max_logit, std::int32_t wanted, SampledToken* result) {
  const double log_total = std::log(row_exp(logits, max_logit, 1.0f, {}));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - max_logit - log_total); };
  result->logprob = logprob(logits[result->token]);
  const std::size_t top = std::min<std::size_t>(wanted, logits.size());
  if (top == 0) return;
  // The `top` likeliest: a small heap whose front is the least of them.
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (candidates_.size() == top && !(logits[i] > candidates_.front().logit)) continue;
    if (candidates_.size() == top) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Likelier());
      candidates_.pop_back();
    }
    candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
    std::push_heap(candidates_.begin(), candidates_.end(), Likelier());
  }
  std::sort(candidates_.begin(), candidates_.end(), Likelier());
  for (const Candidate& c : candidates_) result->top.push_back({c.token, logprob(c.logit)});
}

}  // namespace fovea
