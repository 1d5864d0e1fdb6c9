// Rotary angles: each scaling kind against its published formula in fp64, and the cache of one forward's positions.
// (The golden tests of src/engine/model compare whole models with transformers.)
#include "cpu/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace fovea::cpu {
namespace {

RopeParams params(RopeScaling scaling, double factor) {
  RopeParams p;
  p.scaling = scaling;
  p.theta = 500000.0;
  p.rotary_dim = 128;
  p.factor = factor;
  return p;
}

TEST(Rope, PlainAndLinear) {
  const auto plain = rope_frequencies(params(RopeScaling::kPlain, 8.0));
  const auto linear = rope_frequencies(params(RopeScaling::kLinear, 8.0));
  ASSERT_EQ(plain.size(), 64u);
  for (std::size_t i = 0; i < 64; ++i) {
    const double expected = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0);
    EXPECT_NEAR(plain[i], expected, 3e-7 * expected);
    EXPECT_NEAR(linear[i], expected / 8.0, 3e-7 * expected);
  }
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const auto plain = rope_frequencies(params(RopeScaling::kPlain, 1.0));
  const auto scaled = rope_frequencies(params(RopeScaling::kLlama3, 8.0));
  int kept = 0, stretched = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192.0 * plain[i] / (2.0 * std::numbers::pi);  // within the original context
    if (turns > 4.0) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (turns < 1.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8.0f);
      ++stretched;
    } else {
      const double smooth = (turns - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], (1.0 - smooth) * plain[i] / 8.0 + smooth * plain[i], 1e-6 * plain[i]);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

TEST(Rope, YarnRampsBetweenItsTwoIndices) {
  RopeParams p = params(RopeScaling::kYarn, 4.0);
  p.theta = 10000.0;
  p.original_max_position = 4096.0;
  const auto scaled = rope_frequencies(p);
  p.scaling = RopeScaling::kPlain;
  const auto plain = rope_frequencies(p);
  const auto index = [](double turns) {
    return 128.0 * std::log(4096.0 / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(10000.0));
  };
  const double low = std::floor(index(32.0)), high = std::ceil(index(1.0));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
    EXPECT_NEAR(scaled[i], plain[i] * (ramp / 4.0 + 1.0 - ramp), 1e-6 * plain[i]) << i;
  }
  p.scaling = RopeScaling::kYarn;
  EXPECT_FLOAT_EQ(rope_attention_factor(p), static_cast<float>(0.1 * std::log(4.0) + 1.0));
  p.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(p), 1.5f);
  p.scaling = RopeScaling::kLlama3;
  EXPECT_EQ(rope_attention_factor(p), 1.0f);
}

TEST(Rope, CacheFollowsPositionsAndParams) {
  ThreadPool pool(2);
  RopeCache cache;
  const auto check = [&](const std::vector<std::int32_t>& positions, const RopeParams& p) {
    const float* table = cache.prepare(positions.data(), static_cast<std::int64_t>(positions.size()), p, pool);
    const auto frequencies = rope_frequencies(p);
    const float factor = rope_attention_factor(p);
    for (std::size_t row = 0; row < positions.size(); ++row) {
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const float angle = static_cast<float>(positions[row]) * frequencies[i];
        ASSERT_NEAR(table[row * 2 * frequencies.size() + i], std::cos(double{angle}) * factor, 2e-7 * factor);
        ASSERT_NEAR(table[(row * 2 + 1) * frequencies.size() + i], std::sin(double{angle}) * factor, 2e-7 * factor);
      }
    }
  };
  std::vector<std::int32_t> many(100);
  for (std::int32_t i = 0; i < 100; ++i) many[static_cast<std::size_t>(i)] = i * 1311;
  check(many, params(RopeScaling::kPlain, 1.0));
  check(many, params(RopeScaling::kPlain, 1.0));
  check(many, params(RopeScaling::kYarn, 4.0));
  many[50] = 7;
  check(many, params(RopeScaling::kYarn, 4.0));
  check({5}, params(RopeScaling::kYarn, 4.0));
  check({5, 6}, params(RopeScaling::kYarn, 4.0));
}

}  // namespace
}  // namespace fovea::cpu
