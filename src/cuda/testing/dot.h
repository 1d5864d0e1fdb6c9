// Sums of products at a speed at which a small model answers. Used by the fake driver's products.
#pragma once

#include <cstddef>

namespace fovea::cuda::fake {

inline float dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLanes = 32;
  float sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0.0f;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace fovea::cuda::fake
