// The loader that fills stages token by token, 16 bytes a thread: any page size, strides and architecture. Three warps
// take turns, one stage each.
#pragma once

#include "kernels/decode/queue.cuh"

namespace fovea::decode {

// Byte offset of every token's row in the pool: lane l holds those of tokens l and l + 32 of a stage.
struct StageRows {
  static constexpr int kPerLane = (kStageTokens + 31) / 32;
  uint64_t offsets[kPerLane];

  __device__ __forceinline__ void find(const abi::AttentionArgs& args, const Run& run, uint32_t stage_token,
                                       ItemRecord* record, uint32_t lane) {
    const abi::KvPoolView& pool = args.pool;
    const uint32_t entry_tokens = static_cast<uint32_t>(pool.entry_tokens);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t wanted = stage_token + lane + 32 * i;
      const uint32_t token = min(max(wanted, run.begin), run.end - 1);
      const uint32_t entry = token / entry_tokens;
      long long page = args.page_entries[run.list_begin + entry];
      long long in_page = token - entry * entry_tokens;
      if constexpr (kChecked) {
        if (static_cast<uint64_t>(page) >= uint64_t{args.num_pages} * pool.entries_per_page) {
          record->bad_pages = 1;
          page = 0;
        }
      }
      if (pool.entries_per_page > 1) {
        in_page += static_cast<int32_t>(page) % pool.entries_per_page * pool.entry_tokens;
        page = static_cast<int32_t>(page) / pool.entries_per_page;
      }
      offsets[i] = static_cast<uint64_t>(page * pool.page_stride + in_page * pool.token_stride +
                                         static_cast<long long>(run.head) * pool.head_stride) *
                   kElementBytes;
    }
  }

  // By all lanes.
  __device__ __forceinline__ uint64_t of(uint32_t token) const {
    uint64_t offset = __shfl_sync(~0u, offsets[0], token & 31);
    if constexpr (kPerLane > 1) {
      const uint64_t second = __shfl_sync(~0u, offsets[1], token & 31);
      if (token >= 32) offset = second;
    }
    return offset;
  }
};

__device__ __forceinline__ void load_stage(const abi::AttentionArgs& args, SharedMemory& shared, const Run& run,
                                           const StageRows& rows, uint32_t stage_token, uint32_t slot, uint32_t lane) {
  constexpr uint32_t kChunks = kRowBytes / 16;
  constexpr uint32_t kCopies = kStageTokens * kChunks;
  const uint32_t k_tile = ptx::smem_address(shared.kv[slot][0]);
  const auto* k = static_cast<const uint8_t*>(args.pool.k);
  const auto* v = static_cast<const uint8_t*>(args.pool.v);
#pragma unroll 4
  for (uint32_t copy = lane; copy < (kCopies + 31) / 32 * 32; copy += 32) {
    const uint32_t token = copy / kChunks;
    const uint32_t chunk = copy % kChunks;
    const uint64_t offset = rows.of(token % kStageTokens) + chunk * 16;
    if (copy < kCopies && stage_token + token >= run.begin && stage_token + token < run.end) {
      const uint32_t to = k_tile + chunk_offset(token, chunk);
      ptx::cp_async_16(to, k + offset);
      ptx::cp_async_16(to + kTileBytes, v + offset);
    }
  }
  const uint32_t full = ptx::smem_address(&shared.full[slot]);
  ptx::mbarrier_arrive_after_copies(full);
  if constexpr (kChecked) {  // publishes what this warp wrote to the record
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(full);
  }
}

__device__ __forceinline__ void run_loader(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                           uint32_t warp, uint32_t lane) {
  uint32_t use = 0;  // of the first stage of the item
  for (uint32_t i = 0;; ++i) {
    const RingSlot<kRecords> record_slot(i);
    ItemRecord* const record = &shared.records[record_slot.index];
    Run run;
    if (i == 0 && !kChecked && !queue.empty()) {
      run = first_run(args, queue);
    } else {
      ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[record_slot.index]), record_slot.parity);
      run = run_of(args, *record);
    }
    if (run.head == kEndOfWork) return;
    const uint32_t base = run.base();
    const uint32_t stages = run.stages();
    uint32_t k = (warp + kLoaderWarps - use % kLoaderWarps) % kLoaderWarps;
    StageRows rows{};
    if (k < stages) rows.find(args, run, base + k * kStageTokens, record, lane);
    for (; k < stages; k += kLoaderWarps) {
      StageRows ahead{};
      if (k + kLoaderWarps < stages) ahead.find(args, run, base + (k + kLoaderWarps) * kStageTokens, record, lane);
      const RingSlot<kStages> slot(use + k);
      ptx::mbarrier_wait(ptx::smem_address(&shared.empty[slot.index]), slot.parity ^ 1);
      if (lane == 0) arm_stage(shared, slot.index, use + k);
      load_stage(args, shared, run, rows, base + k * kStageTokens, slot.index, lane);
      rows = ahead;
    }
    use += stages;
    __syncwarp();
    if (lane == 0) {
      tell_loaded(shared, warp, i + 1);
      ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[record_slot.index]));
    }
  }
}

}  // namespace fovea::decode
