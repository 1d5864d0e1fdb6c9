// What the warps of a CTA of the general kernel do: eight compute; of the warpgroup behind them one (TMA) or three
// (gather) load K and V into a ring of stages and the last one reads the plan ahead. Used by the kernels that
// general/kernel.cuh and prefix_forest/kernel.cuh are, which differ in how they compute.
#pragma once

#include "kernels/attention/general/consumer.cuh"
#include "kernels/attention/general/loader_gather.cuh"
#include "kernels/attention/general/loader_tma.cuh"

namespace fovea::attention {

// By all threads, each its own.
__device__ __forceinline__ void init_barriers(SharedMemory& shared, uint32_t thread) {
  if (thread < kStages) {
    shared.armed[thread] = 0;
    // Bytes that TMA brings count by themselves, behind one arrival; copies of a warp arrive thread by thread.
    ptx::mbarrier_init(ptx::smem_address(&shared.full[thread]), kTma ? 1 : kGatherArrivals);
    ptx::mbarrier_init(ptx::smem_address(&shared.empty[thread]), kConsumerWarps);
  } else if (thread < kStages + kRecords) {
    const uint32_t i = thread - kStages;
    ptx::mbarrier_init(ptx::smem_address(&shared.record_full[i]), kRecordArrivals);
    ptx::mbarrier_init(ptx::smem_address(&shared.record_empty[i]), kConsumerWarps + kLoaderWarps);
  } else if (thread < kStages + kRecords + kLoaderWarps) {
    shared.loaded_items[thread - kStages - kRecords] = 0;
  }
  ptx::fence_mbarrier_init();
}

// compute(queue, shared, warp, lane): by the warps that compute.
template <class Compute>
__device__ __forceinline__ void run_cta(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                        const abi::TensorMap* v_map, SharedMemory& shared, const Compute& compute) {
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const uint32_t lane = threadIdx.x % 32;

  init_barriers(shared, threadIdx.x);
#if FOVEA_LOADER == 0
  if (warp == kConsumerWarps && lane == 0) ptx::prefetch_tensor_map(k_map);
  if (warp == kConsumerWarps && lane == 1) ptx::prefetch_tensor_map(v_map);
#endif
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const Queue queue = Queue::of(args, blockIdx.x);
  __syncthreads();

  if (warp >= kConsumerWarps) {
    if constexpr (kSplitRegisters) ptx::setmaxnreg_dec<kProducerRegisters>();
    const uint32_t producer = warp - kConsumerWarps;
    if (producer == 3) {
      run_scheduler(args, shared, lane);
    } else if (producer < kLoaderWarps) {
#if FOVEA_LOADER == 0
      run_loader(args, k_map, v_map, queue, shared, producer, lane);
#else
      run_loader(args, queue, shared, producer, lane);
#endif
    }
  } else {
    if constexpr (kSplitRegisters) ptx::setmaxnreg_inc<kConsumerRegisters>();
    compute(queue, shared, warp, lane);
  }
}

}  // namespace fovea::attention
