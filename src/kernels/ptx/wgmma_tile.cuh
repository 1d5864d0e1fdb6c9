// The warpgroup's matrix product (wgmma) with both operands in shared memory, and waiting for products under way.
// sm_90a only. Used by the prefill kernel, its ladder and products of a batch; layouts are those of ptx/wgmma.cuh.
#pragma once

#include "kernels/ptx/wgmma.cuh"

#if FOVEA_ARCH >= 900

namespace fovea::ptx {

// A matrix in shared memory, by the low word of its descriptor (see wgmma_matrix()): the same in all lanes, so that
// matrices at constant distances are one addition of the uniform datapath each.
__device__ __forceinline__ uint32_t wgmma_base(uint32_t address, uint32_t panel = 16) {
  return __shfl_sync(~0u, static_cast<uint32_t>(wgmma_matrix(address, panel)), 0);
}
__device__ __forceinline__ uint64_t wgmma_at(uint32_t base, uint32_t bytes) {
  constexpr uint32_t kHigh = 1024 >> 4 | 1u << 30;
  return static_cast<uint64_t>(kHigh) << 32 | (base + (bytes >> 4));
}

// Waits until at most kPending committed groups of products are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// What the compiler may do with sums of products ends here: they change between the product and its wait.
template <int kCount>
__device__ __forceinline__ void wgmma_settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d [64, N] = A B^T (+ d unless fresh), both operands rows of 128 bytes along the inner dimension (K-major).
#define FOVEA_WGMMA(SUMS, N, A, B, FRESH)                                                                 \
  template <bool kBf16>                                                                                   \
  __device__ __forceinline__ void wgmma_shared(float(&d)[SUMS], uint64_t a, uint64_t b, uint32_t fresh) { \
    if constexpr (kBf16) {                                                                                \
      asm volatile(FOVEA_WGMMA_TEXT("bf16", SUMS, N, A, B, FRESH, "0, 0")                                 \
                   : FOVEA_SUMS_##SUMS                                                                    \
                   : "l"(a), "l"(b), "r"(fresh));                                                         \
    } else {                                                                                              \
      asm volatile(FOVEA_WGMMA_TEXT("f16", SUMS, N, A, B, FRESH, "0, 0")                                  \
                   : FOVEA_SUMS_##SUMS                                                                    \
                   : "l"(a), "l"(b), "r"(fresh));                                                         \
    }                                                                                                     \
  }
FOVEA_WGMMA(16, "32", "%16", "%17", "%18")
FOVEA_WGMMA(32, "64", "%32", "%33", "%34")
FOVEA_WGMMA(64, "128", "%64", "%65", "%66")
#undef FOVEA_WGMMA

}  // namespace fovea::ptx

#endif
