// The rotation of queries and outputs over rotated pools (abi/kv_pool.h). Used by rows.cuh, state.cuh and the
// kernels warp_per_worker and prefill.
#pragma once

#include "kernels/attention/config.cuh"

namespace fovea::attention {

// x = H x / sqrt(head_dim) of a row whose dims lie in the registers of some lanes: which of them differ in the bits
// kFirstLane to kLastLane of their number. The dims' order does not matter as long as each bit of a dim's number is one
// of a register's or of a lane's: H is a product of one factor for every bit.
template <uint32_t kFirstLane, uint32_t kLastLane, int kCount>
__device__ __forceinline__ void rotate(float (&x)[kCount], uint32_t lane) {
  static_assert((kCount & (kCount - 1)) == 0 && kCount * kLastLane * 2 / kFirstLane == kHeadDim);
#pragma unroll
  for (int half = 1; half < kCount; half *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i & half) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
#pragma unroll
  for (uint32_t half = kFirstLane; half <= kLastLane; half *= 2) {
    const float sign = lane & half ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], half);
      x[i] = fmaf(x[i], sign, other);
    }
  }
  constexpr float kRootHalf = 0.70710678118654752f;
  constexpr float kBy = kHeadDim == 256  ? 1.0f / 16
                        : kHeadDim == 64 ? 1.0f / 8
                        : kHeadDim == 32 ? kRootHalf / 4
                                         : kRootHalf / 8;  // 128
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= kBy;
}

}  // namespace fovea::attention
