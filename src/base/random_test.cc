// Philox against the known answers of its authors' library, and the distributions drawn from it.
#include "base/random.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea {
namespace {

using Block = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SameSeedSameNumbersOtherStreamOthers) {
  PhiloxRng a(7, 1), b(7, 1), c(7, 2), d(8, 1);
  int same_c = 0, same_d = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t x = a.next_u32();
    EXPECT_EQ(x, b.next_u32());
    same_c += x == c.next_u32();
    same_d += x == d.next_u32();
  }
  EXPECT_LE(same_c, 1);
  EXPECT_LE(same_d, 1);
}

TEST(Philox, SeekIsRandomAccess) {
  PhiloxRng a(3), b(3);
  std::vector<std::uint32_t> all(40);
  for (std::uint32_t& x : all) x = a.next_u32();
  b.seek(5);
  for (std::size_t i = 20; i < 40; ++i) EXPECT_EQ(b.next_u32(), all[i]);
}

TEST(Philox, UniformAndNormalMoments) {
  PhiloxRng rng(11);
  constexpr int kCount = 200000;
  double sum = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const float u = rng.next_float();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
    const double z = rng.next_normal();
    normal_sum += z;
    normal_squares += z * z;
  }
  // Five standard errors of each mean.
  EXPECT_NEAR(sum / kCount, 0.5, 5 * 0.2887 / std::sqrt(kCount));
  EXPECT_NEAR(normal_sum / kCount, 0.0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(normal_squares / kCount, 1.0, 5 * std::sqrt(2.0 / kCount));
}

TEST(Philox, BelowCoversItsRangeEvenly) {
  PhiloxRng rng(5);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) ++counts[rng.next_below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * std::sqrt(10000.0));
  EXPECT_EQ(rng.next_below(1), 0u);
}

}  // namespace
}  // namespace fovea
