// The warps that compute: every item is worked on by all of them as a team, or, when it is short, by one warp alone
// while the others go ahead to the items behind it.
#pragma once

#include "kernels/decode/merge.cuh"
#include "kernels/decode/queue.cuh"
#include "kernels/ptx/sync.cuh"

namespace fovea::decode {

inline constexpr uint32_t kTeamBarrier = 1;

// How the warps divide an item: row blocks of 16, and slices of 16 tokens in turns.
struct Division {
  uint32_t row_blocks;   // power of two; warp w has block w % row_blocks
  uint32_t first_stage;  // stages of this warp: first_stage, first_stage + stage_step, ..
  uint32_t stage_step;
  uint32_t first_slice;  // and in each of them, slices first_slice, first_slice + slice_step, ..
  uint32_t slice_step;
  uint32_t arrivals;  // that each of the warps using a stage owes to its empty barrier

  __device__ __forceinline__ static Division alone() { return {1, 0, 1, 0, 1, kConsumerWarps}; }
  __device__ __forceinline__ static Division team(uint32_t rows, uint32_t warp) {
    const uint32_t row_blocks = rows <= 16 ? 1 : rows <= 32 ? 2 : rows <= 64 ? 4 : 8;
    const uint32_t sharers = kConsumerWarps / row_blocks;  // warps that share the tokens of a row block
    const uint32_t turn = warp / row_blocks;
    if (sharers >= kSlices) {
      return {row_blocks, turn / kSlices, sharers / kSlices, turn % kSlices, kSlices, sharers / kSlices};
    }
    return {row_blocks, 0, 1, turn, sharers, 1};
  }
};

// All slices of the item that are this warp's. use: of the item's first stage.
__device__ __forceinline__ void run_slices(const abi::AttentionArgs& args, const Work& work, const Division& division,
                                           const Row (&rows)[2], const Queries& q, State& state, SharedMemory& shared,
                                           uint32_t base, uint32_t stages, uint32_t use, float* scratch,
                                           uint32_t lane) {
  const PositionRange range = position_range(rows);
  for (uint32_t k = division.first_stage; k < stages; k += division.stage_step) {
    const RingSlot<kStages> slot(use + k);
    wait_for_stage(shared, slot.index, slot.parity, use + k);
    const uint32_t k_tile = ptx::smem_address(shared.kv[slot.index][0]);
    if (work.first_row < work.rows) {
      for (uint32_t s = division.first_slice; s < kSlices; s += division.slice_step) {
        const uint32_t in_stage = s * kSliceTokens;
        const uint32_t slice = base + k * kStageTokens + in_stage;
        if (slice >= work.end || slice + kSliceTokens <= work.begin) continue;
        if constexpr (kTransformsKv) {
          transform_slice(args, work, shared.kv[slot.index][0], shared.kv[slot.index][1], slice, in_stage, scratch,
                          lane);
        }
        if (may_hide(work, range, slice)) {
          run_slice<true>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, in_stage, lane);
        } else {
          run_slice<false>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, in_stage, lane);
        }
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), division.arrivals, lane);
  }
}

__device__ __forceinline__ float logit_scale(const abi::AttentionArgs& args, uint32_t kv_head) {
  float scale = variant_params(args).sm_scale;
  if constexpr (Variant::kSoftmax && !Variant::kHasLogit) scale *= fovea::variant::kLog2e;
  if constexpr (kFp8) {
    if (args.pool.k_scale != nullptr) scale *= static_cast<const float*>(args.pool.k_scale)[kv_head];
  }
  return scale;
}

__device__ __forceinline__ void run_consumer(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                             uint32_t warp, uint32_t lane) {
  const auto barrier = [] { ptx::barrier_sync(kTeamBarrier, kConsumerThreads); };
  Work work{};
  work.header = queue.header;
  work.group = queue.header->counts.group;
  work.q_heads = queue.header->counts.num_kv_heads * work.group;
  float* const scratch = shared.hook_rows[kRowHooks ? warp : 0];
  constexpr bool kRest = kBlocks > kQueryBlocks;
  uint4* const rest = &shared.queries[kRest ? warp : 0][0][kRest ? lane : 0];
  uint32_t use = 0;
  uint32_t alone_turn = 0;  // warp that takes the next short item
  uint32_t parity = 0;
  for (uint32_t i = 0;; ++i) {
    const RingSlot<kRecords> slot(i);
    const ItemRecord& record = shared.records[slot.index];
    ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[slot.index]), slot.parity);
    if (record.head == kEndOfWork) return;
    const Run run = run_of(args, record);
    work.record = &record;
    work.begin = run.begin;
    work.end = run.end;
    work.rows = record.item.row_count * work.group;
    const uint32_t stages = run.stages();
    const bool alone = work.rows <= 16 && run.end - run.begin <= kOneWarpTokens;
    bool mine = true;
    if (alone) {
      mine = alone_turn == warp;
      alone_turn = alone_turn + 1 == kConsumerWarps ? 0 : alone_turn + 1;
    }
    if (mine) {
      const Division division = alone ? Division::alone() : Division::team(work.rows, warp);
      work.first_row = warp % division.row_blocks * 16;
      const Row rows[2] = {find_row(args, work, work.first_row + lane / 4),
                           find_row(args, work, work.first_row + lane / 4 + 8)};
      MergeSlot merge;
      // Looked up step by step while other loads are on their way; wide heads keep no registers for it.
      constexpr bool kEarly = kHeadDim <= 192;
      if (kEarly) merge.index = find_merge(args, work, alone ? 0 : warp / work.group);
      const Queries q = load_queries(args, work, rows, logit_scale(args, record.head), scratch, rest, lane);
      if (kEarly) merge.entry = find_entry(args, work, merge.index);
      State state;
      clear(state);
      run_slices(args, work, division, rows, q, state, shared, run.base(), stages, use, scratch, lane);
      if (!kEarly) {
        merge.index = find_merge(args, work, alone ? 0 : warp / work.group);
        merge.entry = find_entry(args, work, merge.index);
      }
      merge.part = find_part(args, work, merge.entry, lane);
      const bool direct = (record.item.flags & abi::kItemDirect) != 0;
      if (division.row_blocks == kConsumerWarps || alone) {
        write_alone(args, work, rows, state, lane);
      } else {
        write_together(args, work, shared, rows, state, division.row_blocks, parity, warp, lane, barrier);
        parity ^= 1;
      }
      if (!direct) merge_item(args, work, shared, merge, alone, warp, lane, barrier);
    }
    use += stages;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[slot.index]));
  }
}

}  // namespace fovea::decode
