// How fast this GPU multiplies matrices at most, for the bench: every SM issues products of one shape and nothing else.
// sm_90a: wgmma m64n128k16 with bf16 in registers against shared memory.
//
//   fovea_matrix_rate: kMatrixThreads a CTA, any grid; a warpgroup computes kMatrixSteps products a round.
#pragma once

#include "abi/plan.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kMatrixThreads = 384;  // three warpgroups, so that one always has products to issue
inline constexpr uint32_t kMatrixSteps = 16;     // products of a round and warpgroup

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && FOVEA_ARCH >= 900

extern "C" __global__ void __launch_bounds__(fovea::kernels::kMatrixThreads, 1)
    fovea_matrix_rate(unsigned int rounds, float* out) {
  using namespace fovea;
  // 128 columns of 64 values of the inner dimension: numbers of moderate size, because zeros would draw less power.
  __shared__ __align__(1024) uint32_t columns[128 * 32];
  for (uint32_t i = threadIdx.x; i < 128 * 32; i += kernels::kMatrixThreads) {
    columns[i] = (i * 2654435761u & 0x807f807fu) | 0x3e803e80u;
  }
  ptx::fence_before_async_copies();
  __syncthreads();
  const uint64_t b = ptx::wgmma_matrix(static_cast<uint32_t>(__cvta_generic_to_shared(columns)));
  uint32_t a[4];
  for (uint32_t i = 0; i < 4; ++i) a[i] = ((threadIdx.x * 4 + i) * 40503u & 0x807f807fu) | 0x3e803e80u;
  float sums[64];
  for (float& sum : sums) sum = 0.0f;
  for (uint32_t round = 0; round < rounds; ++round) {
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < kernels::kMatrixSteps; ++step) {
      ptx::wgmma<true, false>(sums, a, b + step % 4 * 2, 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait_all();
  }
  float sum = 0.0f;
  for (const float one : sums) sum += one;
  if (sum == 1.5f) out[0] = sum;  // so that nothing is optimised away
}

#endif
