// fovea_all_reduce: the sum of what several GPUs have, in the order of ranks, for sizes at which latency is all. Every
// CTA writes its part into all ranks' regions, says so, waits for the same CTA of the others, and adds what it was
// sent: one way over NVLink. A region has two halves: who writes the next but one epoch has seen all enter the next,
// and so leave this one. Launched by device/cuda; arguments in abi/ranks_args.h.
//
// Compiled for FOVEA_DTYPE.
#pragma once

#include "abi/ranks_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

__forceinline__ void say_epoch(uint32_t* word, uint32_t epoch) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(epoch) : "memory");
}
__forceinline__ uint32_t heard_epoch(const uint32_t* word) {
  uint32_t epoch;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(epoch) : "l"(word) : "memory");
  return epoch;
}
__forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

template <KvDType kType>
__forceinline__ void all_reduce(const abi::AllReduceArgs& args) {
  constexpr uint32_t kVec = 16 / element_bytes(kType);
  // A rank that compiles or records may be late; one that never comes ends this kernel, and with it the process.
  constexpr uint64_t kPatience = 60ull * 1000 * 1000 * 1000;
  wait_for_inputs();
  const uint32_t cta = blockIdx.x, thread = threadIdx.x;
  abi::ReduceRegion& own = *args.regions[args.rank];
  const uint32_t epoch = own.epochs[cta] + 1, half = epoch & 1u;
  const uint64_t element = (static_cast<uint64_t>(cta) * abi::kReduceThreads + thread) * kVec;
  const bool is_there = element < args.elements;
  if (is_there) {
    const auto mine = load<kType, kVec>(args.x, element);
    for (uint32_t rank = 0; rank < args.size; ++rank) {
      store(args.regions[rank]->data[half][cta][args.rank], thread * kVec, mine);
    }
  }
  __syncthreads();
  if (thread < args.size) {
    say_epoch(&args.regions[thread]->arrived[cta][args.rank], epoch);
    const uint64_t begin = nanoseconds();
    while (heard_epoch(&own.arrived[cta][thread]) != epoch) {
      if (nanoseconds() - begin > kPatience) asm volatile("trap;");
    }
  }
  __syncthreads();
  if (is_there) {
    float sum[kVec];
    unpack(load<kType, kVec>(own.data[half][cta][0], thread * kVec), sum);
    for (uint32_t rank = 1; rank < args.size; ++rank) {
      float more[kVec];
      unpack(load<kType, kVec>(own.data[half][cta][rank], thread * kVec), more);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) sum[e] += more[e];
    }
    store(args.x, static_cast<long long>(element), pack<kType, kVec>(sum));
  }
  if (thread == 0) own.epochs[cta] = epoch;
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_ALL_REDUCE)
extern "C" __global__ void __launch_bounds__(fovea::abi::kReduceThreads)
    fovea_all_reduce(const __grid_constant__ fovea::abi::AllReduceArgs args) {
  fovea::kernels::all_reduce<static_cast<fovea::abi::KvDType>(FOVEA_DTYPE)>(args);
}
#endif
