// The warps that compute: every item is worked on by all of them as a team, or, when it is short, by one warp alone
// while the others go ahead to the items behind it.
#pragma once

#include "kernels/attention/general/merge.cuh"
#include "kernels/attention/queue.cuh"
#include "kernels/ptx/sync.cuh"

namespace fovea::attention {

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
  uint32_t first = division.first_stage;
  if constexpr (kInvariant) first = (first - base / kStageTokens) & (division.stage_step - 1);  // a power of two
  for (uint32_t k = first; k < stages; k += division.stage_step) {
    const RingSlot<kStages> slot(use + k);
    wait_for_stage(shared, slot.index, slot.parity, use + k);
    const uint32_t k_tile = ptx::smem_address(shared.kv[slot.index][0]);
    const uint32_t scales = ptx::smem_address(shared.scales[kTokenScales ? slot.index : 0][0]);
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
          run_slice<true>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, in_stage, lane, scales);
        } else {
          run_slice<false>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, in_stage, lane, scales);
        }
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), division.arrivals, lane);
  }
  finish_quantized(state, lane);
}

// The state of an item's rows becomes output, or parts and, where they are complete, output.
template <class Barrier>
__device__ __forceinline__ void finish_item(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                            const Row (&rows)[2], State& state, MergeRule rule, const MergeSlot& merge,
                                            bool alone, uint32_t row_blocks, uint32_t& parity, uint32_t warp,
                                            uint32_t lane, const Barrier& barrier) {
  const bool counted = rule == MergeRule::kCounted;
  Destination to = work.record->item.flags & abi::kItemDirect ? Destination::kOutput : Destination::kPart;
  MergeCount count{};
  const auto arrive = [&] {
    if (counted) count.arrive(args, work, merge, alone, warp, lane);
  };
  if (alone || row_blocks == kConsumerWarps) {
    if (counted && !alone) barrier();  // nobody waits in a merge any more
    arrive();
    write_alone(args, work, rows, to, state, lane);
  } else {
    if (rule == MergeRule::kFirst && row_blocks == 1 && work.rows * merge.entry.num_parts <= kPartWeights) {
      to = Destination::kMerged;
      rule = MergeRule::kNone;
    }
    write_together(args, work, shared, rows, Ending{to, merge}, state, row_blocks, parity, warp, lane, barrier, arrive);
    parity ^= 1;
  }
  if (rule == MergeRule::kNone) return;
  uint32_t mine = 0;
  if (counted) {
    mine = count.due(args);
    if (!alone) {
      if (lane == 0) shared.last_tokens[warp] = mine;
      barrier();
    }
  }
  merge_rows(args, work, rule, merge, alone, warp, lane,
             [&](uint32_t i) { return alone ? mine : shared.last_tokens[i]; });
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
    // Parts of a divided pair have the CTA to themselves: it has at most two of them.
    const bool alone =
        work.rows <= 16 && run.end - run.begin <= kOneWarpTokens && !(record.item.flags & abi::kItemSingleHead);
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
      // Who merges is looked up step by step while other loads are on their way; wide heads keep no registers for it. A
      // worker that merges a divided pair finds all rows by the first query token.
      constexpr bool kEarly = kHeadDim <= 192;
      MergeRule rule = MergeRule::kNone;
      MergeSlot merge{abi::kNone, {}};
      const auto find_slot = [&] {
        rule = merge_rule(args, work);
        if (rule == MergeRule::kNone) return;
        merge.index = find_merge(args, work, alone || rule == MergeRule::kFirst ? 0 : warp / work.group);
      };
      if (kEarly) find_slot();
      const Queries q = load_queries(args, rows, logit_scale(args, record.head), scratch, rest, lane);
      if (kEarly) {
        merge.entry = find_entry(args, work, merge.index);
        PartList(args, work, merge.entry).touch(lane);
      }
      State state;
      clear(state);
      run_slices(args, work, division, rows, q, state, shared, run.base(), stages, use, scratch, lane);
      if (!kEarly) {
        find_slot();
        merge.entry = find_entry(args, work, merge.index);
      }
      finish_item(args, work, shared, rows, state, rule, merge, alone, division.row_blocks, parity, warp, lane,
                  barrier);
    }
    use += stages;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[slot.index]));
  }
}

}  // namespace fovea::attention
