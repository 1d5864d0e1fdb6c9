// The sampler against a slow one that sorts everything in double precision; distributions by counting.
#include "engine/sampler/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/random.h"
#include "engine/sampler/stop_matcher.h"
#include "engine/sampler/vector_math.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_logits(std::int32_t n, std::uint64_t seed, float scale = 3.0f) {
  PhiloxRng rng(seed);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = scale * rng.next_normal();
  return logits;
}

// Probabilities after temperature, top-k, top-p and min-p, by sorting.
std::vector<double> reference(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < order.size()) order.resize(params.top_k);
  const double max = logits[order[0]];
  const auto weight = [&](std::int32_t t) { return std::exp((logits[t] - max) / params.temperature); };
  double total = 0.0;
  for (const std::int32_t t : order) total += weight(t);
  std::vector<double> p(logits.size(), 0.0);
  double mass = 0.0;
  double kept = 0.0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && mass >= params.top_p * total) break;
    mass += weight(order[i]);
    if (weight(order[i]) < params.min_p) break;
    p[order[i]] = weight(order[i]);
    kept += p[order[i]];
  }
  for (double& value : p) value /= kept;
  return p;
}

TEST(VectorMath, ExpIsAccurate) {
  double worst = 0.0;
  for (float x = -86.9f; x <= 0.0f; x += 0.00173f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp_nonpositive(x) - exact) / exact);
  }
  EXPECT_LT(worst, 1e-5);  // near -87 a float's own spacing moves e^x by 4e-6
  for (float x = -8.0f; x <= 0.0f; x += 0.00013f) {
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(exp_nonpositive(x) / exact, 1.0, 1.5e-6) << x;
  }
  EXPECT_EQ(exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_nonpositive(-std::numeric_limits<float>::infinity()), 0.0f);
}

TEST(Sampler, GreedyTakesTheFirstLargest) {
  Sampler sampler(37);
  std::vector<float> logits(37, -1.0f);
  logits[20] = logits[35] = 2.0f;
  SamplingParams params;
  params.temperature = 0.0f;
  EXPECT_EQ(sampler.sample(logits, SamplingState(params, 1, {}, {}))->token, 20);
  logits.assign(37, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(sampler.sample(logits, SamplingState(params, 1, {}, {})).status().code(), StatusCode::kInternal);
}

// The token drawn is the one that the sorted reference says for every setting: counts fit the probabilities.
TEST(Sampler, DrawsFromTheReferenceDistribution) {
  const std::int32_t vocab = 1000;
  Sampler sampler(vocab);
  const std::vector<float> logits = random_logits(vocab, 7, 2.0f);
  struct Case {
    float temperature, top_p;
    std::int32_t top_k;
    float min_p;
  };
  for (const Case& c : {Case{1.0f, 1.0f, 0, 0.0f}, Case{0.7f, 0.9f, 0, 0.0f}, Case{1.0f, 1.0f, 20, 0.0f},
                        Case{1.5f, 0.8f, 50, 0.0f}, Case{1.0f, 1.0f, 0, 0.05f}, Case{2.0f, 0.999f, 0, 0.01f},
                        Case{1.0f, 0.001f, 0, 0.0f}, Case{5.0f, 0.99f, 0, 0.0f}, Case{1.0f, 1.0f, 5000, 0.0f}}) {
    SCOPED_TRACE(::testing::Message() << c.temperature << " " << c.top_p << " " << c.top_k << " " << c.min_p);
    SamplingParams params;
    params.temperature = c.temperature;
    params.top_p = c.top_p;
    params.top_k = c.top_k;
    params.min_p = c.min_p;
    const std::vector<double> p = reference(logits, params);
    const int draws = 20000;
    std::vector<int> counts(vocab, 0);
    for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits, SamplingState(params, 1000 + i, {}, {}))->token];
    double chi2 = 0.0;
    int cells = 0;
    double rest_expected = 0.0;
    double rest_seen = 0.0;
    for (std::int32_t t = 0; t < vocab; ++t) {
      if (p[t] == 0.0) {
        ASSERT_EQ(counts[t], 0) << "token " << t << " was cut off";
      } else if (p[t] * draws < 5.0) {
        rest_expected += p[t] * draws;
        rest_seen += counts[t];
      } else {
        chi2 += std::pow(counts[t] - p[t] * draws, 2) / (p[t] * draws);
        ++cells;
      }
    }
    if (rest_expected > 0.0) chi2 += std::pow(rest_seen - rest_expected, 2) / std::max(rest_expected, 1.0);
    EXPECT_LT(chi2, cells + 5.0 * std::sqrt(2.0 * cells + 2.0)) << "over " << cells << " cells";
  }
}

TEST(Sampler, SameSeedAndPositionSameTokenWhateverElse) {
  const std::vector<float> logits = random_logits(5000, 3);
  SamplingParams params;
  Sampler one(5000);
  Sampler two(5000);
  SamplingState state(params, 42, {}, {});
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(two.sample(random_logits(5000, i), SamplingState(params, i, {}, {})).ok());
    const std::int32_t token = one.sample(logits, state)->token;
    EXPECT_EQ(two.sample(logits, state)->token, token);
    ++seen[token];
    state.add_token(token);
  }
  EXPECT_GT(seen.size(), 10u);  // the position moves the draw
}

// A token that was not taken leaves the mask, and what is drawn next owes nothing to the draw before.
TEST(Sampler, DrawsAgainWithoutWhatWasNotTaken) {
  const std::vector<float> logits = {0.0f, 0.0f, 0.0f};
  Sampler sampler(3);
  const std::int32_t without_first = 0b110;
  int all[3] = {}, second[3] = {};
  constexpr int kDraws = 6000;
  for (int i = 0; i < kDraws; ++i) {
    const SamplingState state(SamplingParams{}, static_cast<std::uint64_t>(i), {}, {});
    const std::int32_t token = sampler.sample(logits, state)->token;
    ++all[token];
    if (token == 0) ++second[sampler.sample(logits, state, std::span(&without_first, 1), 1)->token];
  }
  EXPECT_EQ(second[0], 0);
  EXPECT_NEAR(second[1], all[0] / 2, 5 * std::sqrt(all[0] / 4.0));
}

TEST(Sampler, PenaltiesBiasAndMinTokens) {
  Sampler sampler(4);
  SamplingParams params;
  params.temperature = 0.0f;
  const std::vector<float> logits = {1.0f, 0.9f, 0.5f, -1.0f};
  const auto next = [&](const SamplingParams& p, const std::vector<std::int32_t>& prompt,
                        const std::vector<std::int32_t>& generated) {
    const std::vector<std::int32_t> eos = {0};
    SamplingState state(p, 1, prompt, eos);
    for (const std::int32_t token : generated) state.add_token(token);
    return sampler.sample(logits, state)->token;
  };
  EXPECT_EQ(next(params, {0}, {}), 0);
  SamplingParams p = params;
  p.presence_penalty = 0.2f;
  EXPECT_EQ(next(p, {0}, {}), 0);  // prompt tokens do not count
  EXPECT_EQ(next(p, {}, {0}), 1);
  p = params;
  p.frequency_penalty = 0.06f;
  EXPECT_EQ(next(p, {}, {0}), 0);
  EXPECT_EQ(next(p, {}, {0, 0}), 1);
  p = params;
  p.repetition_penalty = 1.5f;
  EXPECT_EQ(next(p, {0}, {}), 1);
  EXPECT_EQ(next(p, {0}, {1}), 0);  // 0.667 against 0.6: once each, though 0 stands in both lists below
  EXPECT_EQ(next(p, {0}, {0, 1}), 0);
  p = params;
  p.logit_bias = {{3, 2.5f}};
  EXPECT_EQ(next(p, {}, {}), 3);
  p = params;
  p.min_tokens = 2;
  p.stop_token_ids = {1};
  EXPECT_EQ(next(p, {}, {}), 2);
  EXPECT_EQ(next(p, {}, {2}), 2);
  EXPECT_EQ(next(p, {}, {2, 2}), 0);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const std::int32_t vocab = 3001;
  Sampler sampler(vocab);
  const std::vector<float> logits = random_logits(vocab, 11);
  SamplingParams params;
  params.logprobs = 5;
  params.logit_bias = {{17, 100.0f}};
  const auto sampled = sampler.sample(logits, SamplingState(params, 1, {}, {}));
  EXPECT_EQ(sampled->token, 17);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(sampled->logprob, logits[17] - std::log(total), 1e-5);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  ASSERT_EQ(sampled->top.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(logits[sampled->top[i].token], sorted[i]);
    EXPECT_NEAR(sampled->top[i].logprob, sorted[i] - std::log(total), 1e-5);
  }
}

TEST(CheckSampling, NamesTheParameterAndTheRange) {
  SamplingParams params;
  EXPECT_TRUE(check_sampling(params, 10).ok());
  params.temperature = -1.0f;
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("temperature is -1; expected 0 to 100"));
  params = {};
  params.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(check_sampling(params, 10).ok());
  params = {};
  params.top_p = 0.0f;
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("top_p"));
  params = {};
  params.stop_token_ids = {10};
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("0 to 9"));
  params = {};
  params.stop = {""};
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("stop string"));
  params.stop = {"\xc3"};
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("UTF-8"));
  params = {};
  params.logit_bias = {{-1, 0.0f}};
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("logit_bias"));
  params = {};
  params.max_tokens = 3;
  params.min_tokens = 4;
  EXPECT_THAT(check_sampling(params, 10).message(), HasSubstr("min_tokens"));
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher({"END", "ENOUGH"}, false);
  EXPECT_EQ(matcher.append("an E").text, "an ");
  EXPECT_EQ(matcher.append("N").text, "");
  EXPECT_EQ(matcher.append("E").text, "EN");
  const auto output = matcher.append("ND of it");
  EXPECT_TRUE(output.matched);
  EXPECT_EQ(output.text, "");
  StopMatcher including({"END"}, true);
  EXPECT_EQ(including.append("theENDx").text, "theEND");
  StopMatcher unfinished({"END"}, false);
  EXPECT_EQ(unfinished.append("abcEN").text, "abc");
  EXPECT_EQ(unfinished.finish(), "EN");
}

TEST(StopMatcher, AgreesWithASearchOfTheWholeText) {
  PhiloxRng rng(5);
  for (int round = 0; round < 20000; ++round) {
    const auto word = [&](std::uint32_t most) {
      std::string text;
      for (std::uint32_t n = 1 + rng.next_below(most); n > 0; --n) text += static_cast<char>('a' + rng.next_below(2));
      return text;
    };
    std::vector<std::string> stops;
    for (std::uint32_t n = rng.next_below(3); n > 0; --n) stops.push_back(word(4));
    StopMatcher matcher(stops, false);
    std::string whole;
    std::string shown;
    bool matched = false;
    for (int piece = 0; piece < 6 && !matched; ++piece) {
      const std::string text = word(3);
      whole += text;
      const auto output = matcher.append(text);
      shown += output.text;
      matched = output.matched;
    }
    if (!matched) shown += matcher.finish();
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops) first = std::min(first, whole.find(stop));
    ASSERT_EQ(matched, first != std::string::npos);
    ASSERT_EQ(shown, matched ? whole.substr(0, first) : whole);
  }
}

}  // namespace
}  // namespace fovea
