// What the warps that load or convert do with records of items. Used by loader.cuh, gather.cuh, queries.cuh and
// convert.cuh.
#pragma once

#include "kernels/attention/prefill/item.cuh"

namespace fovea::attention::prefill {

// By a loader's warp, after its last load of item n.
__device__ __forceinline__ void end_loads(Memory& shared, uint32_t loader, uint32_t n, uint32_t lane) {
  __syncwarp();
  if (lane != 0) return;
  *static_cast<volatile uint32_t*>(&shared.loaded_items[loader]) = n + 1;
  ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[n % kRecords]));
}

// The record of item n; false behind the last item.
__device__ __forceinline__ bool next_record(Memory& shared, uint32_t n) {
  const RingSlot<kRecords> slot(n);
  ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[slot.index]), slot.parity);
  return shared.records[slot.index].head != kEndOfWork;
}

}  // namespace fovea::attention::prefill
