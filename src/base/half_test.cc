// 16-bit conversions: every value survives a round trip, and ties go to even.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

TEST(Half, EveryBitPatternSurvives) {
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (std::isnan(f16_to_float(bits))) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(f16_to_float(bits)))));
    } else {
      ASSERT_EQ(float_to_f16(f16_to_float(bits)), bits);
    }
    if (std::isnan(bf16_to_float(bits))) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(bits)))));
    } else {
      ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), bits);
    }
  }
}

TEST(Half, TiesGoToEvenBetweenNeighbours) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = f16_to_float(bits), high = f16_to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: one bit more than f16 has
    ASSERT_EQ(float_to_f16(middle), bits + (bits & 1)) << bits;
    ASSERT_EQ(float_to_f16(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(float_to_f16(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace fovea
