// Asynchronous copies from global to shared memory: cp.async for single rows, TMA for boxes of a tensor
// map. Used by the loaders of the kernels.
#pragma once

#include "abi/attention_args.h"

namespace fovea::ptx {

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same of `bytes`, and zeros behind them.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Copies of a thread by groups: those since the last commit are one; waits until at most kPending groups are under way.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Brings the line into the L2; reads nothing, so it may come before waiting for who writes there.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

#if FOVEA_ARCH >= 900
__device__ __forceinline__ void prefetch_tensor_map(const abi::TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Data that is read once: first to leave the L2. Data that other CTAs read soon: last.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

// `bytes` in a row, by one thread; completes them on the barrier. Addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

// One box at coordinates {0, c1, 0, c3, c4}, by one thread; completes bytes on the barrier.
__device__ __forceinline__ void tma_load_box(uint32_t to, const abi::TensorMap* map, uint32_t barrier, int32_t c1,
                                             int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %2, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(0), "r"(c1), "r"(c3), "r"(c4), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}
// The same at coordinates {c0, c1, c2, c3, c4}, for tiles that several CTAs read.
__device__ __forceinline__ void tma_load_shared_box(uint32_t to, const abi::TensorMap* map, uint32_t barrier,
                                                    int32_t c0, int32_t c1, int32_t c2, int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "l"(kEvictLast)
      : "memory");
}
#endif

}  // namespace fovea::ptx
