// Shared memory of the general kernel. Used by the loaders and consumers.
#pragma once

#include "kernels/attention/tile.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace fovea::attention {

// One item as the scheduler warp hands it to the other warps: the plan's records, copied as they are.
struct ItemRecord {
  abi::WorkItem item;
  abi::BlockRow block_row;
  uint32_t rows[kRecordTokens];  // of the first query tokens of the item: rows of Q and of the output
  int32_t positions[kRecordTokens];
  uint32_t head;       // kEndOfWork in the record behind the last item
  int32_t kv_len;      // kv_lens[length_slot]; only for open ends
  uint32_t bad_pages;  // checked builds: not 0 when a page entry of the item lies outside of the pool
  uint32_t part;       // warp_per_worker: which part of its pair the item is, and of how many in the high half
};
static_assert(sizeof(ItemRecord) % 16 == 0);

struct SharedMemory {
  // [stage][K, V][box][panel][token of the box][kPanelBytes]
  alignas(1024) uint8_t kv[kStages][2][kTileBytes];
  alignas(16) ItemRecord records[kRecords];
  float2 states[2][kConsumerWarps][16];  // by parity of the item: maximum and sum of every row
  alignas(16) float reduce[kConsumerWarps][kReduceRows][kReducePitch];
  // Fragments of the queries' blocks from kQueryBlocks on, by warp and lane.
  alignas(16) uint4 queries[kBlocks > kQueryBlocks ? kConsumerWarps : 1]
                           [kBlocks > kQueryBlocks ? kBlocks - kQueryBlocks : 1][kBlocks > kQueryBlocks ? 32 : 1];
  uint64_t row_targets[kMaxTileRows];    // where rows that warps sum up together go
  float part_weights[kPartWeights];      // of a divided pair's parts, by row
  uint32_t last_tokens[kConsumerWarps];  // query tokens whose merge is due, as bits
  float hook_rows[kRowHooks ? kConsumerWarps : 1][kRowHooks ? kHeadDim : 1];
  uint32_t loaded_items[kLoaderWarps];  // items whose loads are all on their way
  // Which use of the ring a stage was last emptied for, counted from 1. A warp may pass over stages that are others'
  // and be a whole round ahead; the parity of a barrier alone would not tell it which round that is.
  uint32_t armed[kStages];
  // abi::KvScale of each token of a stage, of K and of V.
  alignas(16) uint32_t scales[kTokenScales ? kStages : 1][2][kTokenScales ? kStageTokens : 4];
  uint64_t gathered_rows[kTma ? 1 : kLoaderWarps][kTma ? 1 : kStageTokens];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t record_full[kRecords];
  uint64_t record_empty[kRecords];
};

#if defined(FOVEA_SMEM_BYTES)
static_assert(sizeof(SharedMemory) <= FOVEA_SMEM_BYTES, "tune/attention_choice.cc counts less than there is");
#endif

// By a loader warp, after the last load of its n-th item.
__device__ __forceinline__ void tell_loaded(SharedMemory& shared, uint32_t loader, uint32_t n) {
  *static_cast<volatile uint32_t*>(&shared.loaded_items[loader]) = n;
}

// By the loader, once it found the stage empty.
__device__ __forceinline__ void arm_stage(SharedMemory& shared, uint32_t stage, uint32_t use) {
  *static_cast<volatile uint32_t*>(&shared.armed[stage]) = use + 1;
}

__device__ __forceinline__ void wait_for_stage(const SharedMemory& shared, uint32_t stage, uint32_t parity,
                                               uint32_t use) {
  while (*static_cast<const volatile uint32_t*>(&shared.armed[stage]) != use + 1) {
  }
  ptx::mbarrier_wait(ptx::smem_address(&shared.full[stage]), parity);
}

}  // namespace fovea::attention
