// Barriers in shared memory that count arrivals and bytes (mbarrier), by 32-bit shared addresses. Used by every ring of
// the kernels. From sm_80 on; waiting with a suspended thread and byte counts need sm_90.
#pragma once

#include "abi/plan.h"

namespace fovea::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// count: arrivals that complete a phase.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

// Makes initialized barriers visible to TMA; a barrier of the CTA must follow.
__device__ __forceinline__ void fence_mbarrier_init() {
#if FOVEA_ARCH >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// `count` arrivals at once, made by a whole warp.
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t barrier, uint32_t count, uint32_t lane) {
#if FOVEA_ARCH >= 900
  if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#else
  if (lane < count) mbarrier_arrive(barrier);
#endif
}

// One arrival, and `bytes` that copies will bring before the phase completes.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival of this thread once its cp.async copies so far have landed.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// True when the phase of this parity is complete. A new barrier's phase before the first counts as complete: parity 1.
// Never waits.
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if FOVEA_ARCH >= 900
  uint32_t done;
  do {  // each try sleeps for a while
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
#else
  while (!mbarrier_test(barrier, parity)) {
  }
#endif
}

}  // namespace fovea::ptx
