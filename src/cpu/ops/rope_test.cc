// The tables of one forward's positions: they follow positions and configuration, and layers that rotate in different
// ways do not take each other's.
#include "cpu/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea::cpu {
namespace {

RopeConfig config_of(RopeKind kind, double factor) {
  RopeConfig config;
  config.kind = kind;
  config.theta = 500000.0;
  config.rotary_dim = 128;
  config.factor = factor;
  return config;
}

TEST(Rope, CacheFollowsPositionsAndParams) {
  ThreadPool pool(2);
  RopeCache cache;
  const auto check = [&](const std::vector<std::int32_t>& positions, const RopeConfig& p) {
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
  check(many, config_of(RopeKind::kPlain, 1.0));
  check(many, config_of(RopeKind::kPlain, 1.0));
  check(many, config_of(RopeKind::kYarn, 4.0));
  many[50] = 7;
  check(many, config_of(RopeKind::kYarn, 4.0));
  check({5}, config_of(RopeKind::kYarn, 4.0));
  check({5, 6}, config_of(RopeKind::kYarn, 4.0));
  check({}, config_of(RopeKind::kYarn, 4.0));
}

TEST(Rope, LayersThatRotateDifferentlyKeepTheirTables) {
  ThreadPool pool(1);
  RopeCache cache;
  const std::vector<std::int32_t> positions = {0, 3, 900};
  const auto first = [&](double factor) {
    return cache.prepare(positions.data(), 3, config_of(RopeKind::kLinear, factor), pool)[128 + 1];
  };
  const float one = first(1.0), eight = first(8.0);
  EXPECT_NE(one, eight);
  for (const double other : {2.0, 3.0, 4.0, 5.0, 6.0}) first(other);
  EXPECT_EQ(first(1.0), one);
  EXPECT_EQ(first(8.0), eight);
}

}  // namespace
}  // namespace fovea::cpu
