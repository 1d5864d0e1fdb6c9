// Quantized KV, the scalar parts: the rotation, and the scales of a block of tokens as the executor wants them. Called
// by executor_inl.h and append.cc.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/attention/item.h"

namespace fovea::cpu {

// x = H x / sqrt(count) in place, H the Hadamard matrix in Sylvester's order; count is a power of two. Its own inverse.
// Stages ascend, so that every backend adds in the same order.
inline void hadamard(float* x, int count) {
  for (int half = 1; half < count; half *= 2) {
    for (int begin = 0; begin < count; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float by = 1.0f / std::sqrt(static_cast<float>(count));
  for (int i = 0; i < count; ++i) x[i] *= by;
}

// element = scale * stored + zero of each token of a block, in fp32.
struct BlockScales {
  alignas(64) float k_scale[kBlockTokens];
  alignas(64) float k_zero[kBlockTokens];
  alignas(64) float v_scale[kBlockTokens];
  alignas(64) float v_zero[kBlockTokens];
};

}  // namespace fovea::cpu
