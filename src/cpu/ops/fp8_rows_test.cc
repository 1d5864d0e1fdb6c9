// Rows rounded to e4m3: every element is as near as three bits of fraction allow, and the largest becomes 448.
#include "cpu/ops/fp8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "base/random.h"

namespace fovea::cpu {
namespace {

TEST(Fp8Rows, EveryElementIsAsNearAsItsBitsAllow) {
  ThreadPool pool(2);
  const std::int64_t rows = 37, width = 211;
  PhiloxRng rng(5);
  std::vector<float> x(rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) x[i] = rng.next_normal() * std::exp2(static_cast<float>(i % 17 - 8));
  std::fill_n(&x[3 * width], width, 0.0f);                     // a row of zeros
  for (int i = 0; i < width; ++i) x[4 * width + i] *= 1e-30f;  // and one of next to nothing
  std::vector<std::uint8_t> codes(x.size());
  std::vector<float> scales(rows);
  quantize_rows(cpu_tensor(x.data(), DType::kF32, rows, width), codes.data(), scales.data(), pool);
  for (std::int64_t row = 0; row < rows; ++row) {
    float most = 0.0f, stored = 0.0f;
    for (std::int64_t i = 0; i < width; ++i) {
      const float value = x[row * width + i], back = e4m3_to_float(codes[row * width + i]) * scales[row];
      most = std::max(most, std::abs(value));
      stored = std::max(stored, std::abs(e4m3_to_float(codes[row * width + i])));
      // Half a unit of the fraction, or half of the least number.
      ASSERT_LE(std::abs(back - value), std::max(std::abs(value) * 0x1.01p-4f, scales[row] * 0x1.01p-10f)) << row;
    }
    EXPECT_EQ(stored, most > 1e-26f ? 448.0f : stored) << row;
  }
}

TEST(Fp8Rows, HalvesAreReadAsTheyAre) {
  ThreadPool pool(1);
  std::vector<std::uint16_t> halves, brains;
  std::vector<float> floats;
  for (int i = 0; i < 64; ++i) {
    floats.push_back(static_cast<float>(i - 20) * 0.25f);
    halves.push_back(float_to_f16(floats.back()));
    brains.push_back(float_to_bf16(floats.back()));
  }
  std::vector<std::uint8_t> codes[3];
  std::vector<float> scales[3];
  const TensorView views[] = {cpu_tensor(floats.data(), DType::kF32, 4, 16),
                              cpu_tensor(halves.data(), DType::kF16, 4, 16),
                              cpu_tensor(brains.data(), DType::kBF16, 4, 16)};
  for (int i = 0; i < 3; ++i) {
    codes[i].resize(64);
    scales[i].resize(4);
    quantize_rows(views[i], codes[i].data(), scales[i].data(), pool);
    EXPECT_EQ(codes[i], codes[0]);
    EXPECT_EQ(scales[i], scales[0]);
  }
}

}  // namespace
}  // namespace fovea::cpu
