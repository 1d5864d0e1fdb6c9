// Named barriers, the register split between warpgroups, and the order between kernels of a stream.
#pragma once

#include "abi/plan.h"

namespace fovea::ptx {

// All `threads` of barrier `id` (1..15; 0 is __syncthreads) wait for one another.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts the caller's warp as arrived at barrier `id`; does not wait.
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Waits for the kernels that this one was launched to overlap; does nothing when it was launched plainly.
__device__ __forceinline__ void griddepcontrol_wait() {
#if FOVEA_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if FOVEA_ARCH >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Of a warpgroup, on sm_90a.
template <uint32_t kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
#if FOVEA_ARCH >= 900
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <uint32_t kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
#if FOVEA_ARCH >= 900
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// What ordinary instructions wrote to shared memory is seen by copies of TMA that follow a barrier.
__device__ __forceinline__ void fence_before_async_copies() {
#if FOVEA_ARCH >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace fovea::ptx
