// Loops over a row of logits that the compiler turns into SIMD code: maximum and exponentials with fixed lanes, so that
// sums have the same order on every machine. Used by sampler.cc.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace fovea {

inline constexpr std::size_t kLanes = 16;

// e^x for x <= 0 with a relative error below 3e-7; 0 below -87. A degree-6 polynomial for 2^f on [-0.5, 0.5].
inline float exp_nonpositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float t = clamped * 1.44269504f;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const float shifted = t + 12582912.0f;
  const float whole = shifted - 12582912.0f;
  const float f = t - whole;
  float p = 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23);
  return x < -87.0f ? 0.0f : std::bit_cast<float>(bits);
}

// Largest element, -inf for none; NaN elements are passed over.
inline float row_max(std::span<const float> row) {
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = row[i + l] > lanes[l] ? row[i + l] : lanes[l];
  }
  float result = *std::max_element(lanes.begin(), lanes.end());
  for (; i < row.size(); ++i) result = row[i] > result ? row[i] : result;
  return result;
}

// Sum of exp((row[i] - max) * inverse_temperature), each written to out[i] where out is not empty.
inline double row_exp(std::span<const float> row, float max, float inverse_temperature, std::span<float> out) {
  std::array<float, kLanes> lanes{};
  double total = 0.0;
  std::size_t i = 0;
  // Lanes are emptied into the double every 4096 elements: rounding stays below 1e-6 for any vocabulary.
  while (i + kLanes <= row.size()) {
    const std::size_t end = std::min(row.size() / kLanes * kLanes, i + 4096);
    for (; i < end; i += kLanes) {
      std::array<float, kLanes> e;
      for (std::size_t l = 0; l < kLanes; ++l) e[l] = exp_nonpositive((row[i + l] - max) * inverse_temperature);
      for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += e[l];
      if (!out.empty()) std::copy(e.begin(), e.end(), out.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (float& lane : lanes) {
      total += lane;
      lane = 0.0f;
    }
  }
  for (; i < row.size(); ++i) {
    const float e = exp_nonpositive((row[i] - max) * inverse_temperature);
    total += e;
    if (!out.empty()) out[i] = e;
  }
  return total;
}

}  // namespace fovea
