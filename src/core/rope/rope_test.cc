// Rotary angles: each scaling kind against its published formula in fp64.
// (The golden tests of src/engine/model compare whole models with transformers.)
#include "core/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace fovea {
namespace {

RopeConfig config_of(RopeKind kind, double factor) {
  RopeConfig p;
  p.kind = kind;
  p.theta = 500000.0;
  p.rotary_dim = 128;
  p.factor = factor;
  return p;
}

TEST(Rope, PlainAndLinear) {
  const auto plain = rope_frequencies(config_of(RopeKind::kPlain, 8.0));
  const auto linear = rope_frequencies(config_of(RopeKind::kLinear, 8.0));
  ASSERT_EQ(plain.size(), 64u);
  for (std::size_t i = 0; i < 64; ++i) {
    const double expected = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0);
    EXPECT_NEAR(plain[i], expected, 3e-7 * expected);
    EXPECT_NEAR(linear[i], expected / 8.0, 3e-7 * expected);
  }
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const auto plain = rope_frequencies(config_of(RopeKind::kPlain, 1.0));
  const auto scaled = rope_frequencies(config_of(RopeKind::kLlama3, 8.0));
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
  RopeConfig p = config_of(RopeKind::kYarn, 4.0);
  p.theta = 10000.0;
  p.original_max_position = 4096.0;
  const auto scaled = rope_frequencies(p);
  p.kind = RopeKind::kPlain;
  const auto plain = rope_frequencies(p);
  const auto index = [](double turns) {
    return 128.0 * std::log(4096.0 / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(10000.0));
  };
  const double low = std::floor(index(32.0)), high = std::ceil(index(1.0));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
    EXPECT_NEAR(scaled[i], plain[i] * (ramp / 4.0 + 1.0 - ramp), 1e-6 * plain[i]) << i;
  }
  p.kind = RopeKind::kYarn;
  EXPECT_FLOAT_EQ(rope_attention_factor(p), static_cast<float>(0.1 * std::log(4.0) + 1.0));
  p.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(p), 1.5f);
  p.kind = RopeKind::kLlama3;
  EXPECT_EQ(rope_attention_factor(p), 1.0f);
}

TEST(Rope, LongRopeDividesEachFrequency) {
  RopeConfig p = config_of(RopeKind::kLongRope, 1.0);
  for (int i = 0; i < 64; ++i) p.frequency_divisors.push_back(1.0 + 0.5 * i);
  p.attention_factor = 1.19;
  const auto scaled = rope_frequencies(p);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const double expected = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0) / p.frequency_divisors[i];
    EXPECT_NEAR(scaled[i], expected, 4e-7 * expected) << i;
  }
  EXPECT_EQ(rope_attention_factor(p), 1.19f);
}

}  // namespace
}  // namespace fovea
