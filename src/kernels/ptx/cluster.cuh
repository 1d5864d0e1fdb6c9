// Shared memory of the other CTAs of a cluster. Addresses are 32-bit shared addresses. sm_90 on. Used by
// kernels/model/linear.
//
// No release at the cluster's scope: that is a fence, which waits for all copies that the warp has under way. Numbers
// are sent with the barrier that counts their bytes instead.
#pragma once

#include "abi/plan.h"

#if FOVEA_ARCH >= 900

namespace fovea::ptx {

// Where CTA `cta` of the cluster has what this one has at `address`.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t cta) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
  return there;
}

// Both addresses in the same CTA; completes 4 (8, 16) bytes on the barrier.
__device__ __forceinline__ void store_async_4(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
               "f"(value), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_async_8(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(value.x), "f"(value.y), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_async_16(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// An arrival that says nothing about what this thread wrote.
__device__ __forceinline__ void arrive_cluster_relaxed(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for a barrier of this CTA that CTAs of the cluster arrive at or send to.
__device__ __forceinline__ void wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// All threads of the cluster meet: what was written before the one is seen after the other.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace fovea::ptx

#endif
