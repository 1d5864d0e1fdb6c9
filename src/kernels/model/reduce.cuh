// Sums over the threads of a warp and of a CTA, in a fixed order. Used by the kernels of this folder.
#pragma once

#include "kernels/ptx/instructions.cuh"

namespace fovea::kernels {

__forceinline__ float warp_sum(float x) {
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

__forceinline__ float warp_max(float x) {
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

// The same for all threads of the CTA. sums: shared memory, a word a warp.
__forceinline__ float cta_sum(float x, float* sums) {
  x = warp_sum(x);
  const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < warps ? sums[lane] : 0.0f);
}

}  // namespace fovea::kernels
