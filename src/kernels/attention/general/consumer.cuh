// The warps that compute: every item is worked on by all of them as a team, or, when it is short, by one warp alone
// while the others go ahead to the items behind it.
#pragma once

#include "kernels/attention/general/merge.cuh"

namespace fovea::attention {

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

// The stages of the ring that an item's tokens come in.
struct Stages {
  uint32_t base;  // token of the run at which the first one begins
  uint32_t count;
  uint32_t use;  // of the ring, by the first one
};

// All slices of the item that are this warp's.
__device__ __forceinline__ void run_slices(const Work& work, const Division& division, const Row (&rows)[2],
                                           const Queries& q, State& state, SharedMemory& shared, const Stages& stages,
                                           float* scratch) {
  const PositionRange range = position_range(rows);
  uint32_t first = division.first_stage;
  if constexpr (kInvariant) first = (first - stages.base / kStageTokens) & (division.stage_step - 1);  // a power of two
  for (uint32_t k = first; k < stages.count; k += division.stage_step) {
    const RingSlot<kStages> slot(stages.use + k);
    wait_for_stage(shared, slot.index, slot.parity, stages.use + k);
    const uint32_t k_tile = ptx::smem_address(shared.kv[slot.index][0]);
    const uint32_t scales = ptx::smem_address(shared.scales[kTokenScales ? slot.index : 0][0]);
    if (work.first_row < work.rows) {
      for (uint32_t s = division.first_slice; s < kSlices; s += division.slice_step) {
        const uint32_t in_stage = s * kSliceTokens;
        const Slice slice{stages.base + k * kStageTokens + in_stage, in_stage, k_tile, k_tile + kTileBytes, scales};
        if (slice.token >= work.end || slice.token + kSliceTokens <= work.begin) continue;
        if constexpr (kTransformsKv) {
          transform_slice(work, slice, shared.kv[slot.index][0], shared.kv[slot.index][1], scratch);
        }
        if (may_mask(work, range, slice.token)) {
          run_slice<true>(work, rows, q, state, slice);
        } else {
          run_slice<false>(work, rows, q, state, slice);
        }
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), division.arrivals, work.lane);
  }
  if constexpr (kFp8 && kTokenScales) {
#pragma unroll
    for (int i = 0; i < 2 * State::kPerRow; ++i) state.at(i % 2, i / 2) *= 1.0f / kPFactor;
  }
  finish_integers(state, work.lane);
}

// The state of an item's rows becomes output, or parts and, where they are complete, output.
__device__ __forceinline__ void finish_item(const Work& work, SharedMemory& shared, const Row (&rows)[2], State& state,
                                            Ending ending, uint32_t& parity) {
  const bool counted = ending.rule == MergeRule::kCounted;
  ending.to = work.record->item.flags & abi::kItemDirect ? Destination::kOutput : Destination::kPart;
  MergeCount count{};
  const auto arrive = [&] {
    if (counted) count.arrive(work, ending);
  };
  if (ending.alone || ending.row_blocks == kConsumerWarps) {
    if (counted && !ending.alone) team_barrier();  // no warp waits in a merge any more
    arrive();
    write_alone(work, rows, ending.to, state);
  } else {
    if (ending.rule == MergeRule::kFirst && ending.row_blocks == 1 &&
        work.rows * ending.slot.entry.num_parts <= kPartWeights) {
      ending.to = Destination::kMerged;
      ending.rule = MergeRule::kNone;
    }
    write_together(work, shared, rows, ending, state, parity, arrive);
    parity ^= 1;
  }
  if (ending.rule == MergeRule::kNone) return;
  uint32_t mine = 0;
  if (counted) {
    mine = count.due(*work.args);
    if (!ending.alone) {
      if (work.lane == 0) shared.last_tokens[work.warp] = mine;
      team_barrier();
    }
  }
  merge_rows(work, ending, [&](uint32_t i) { return ending.alone ? mine : shared.last_tokens[i]; });
}

// The items of the queue, in order: run_item(its record's tokens and rows in `work`, its stages).
template <class F>
__device__ __forceinline__ void for_each_item(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                              uint32_t warp, uint32_t lane, const F& run_item) {
  Work work{};
  work.args = &args;
  work.warp = warp;
  work.lane = lane;
  work.header = queue.header;
  work.group = queue.header->counts.group;
  work.q_heads = queue.header->counts.num_kv_heads * work.group;
  uint32_t use = 0;
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
    const Stages stages{run.base(), run.stages(), use};
    run_item(work, stages);
    use += stages.count;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[slot.index]));
  }
}

__device__ __forceinline__ void run_consumer(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                             uint32_t warp, uint32_t lane) {
  float* const scratch = shared.hook_rows[kRowHooks ? warp : 0];
  constexpr bool kRest = kBlocks > kQueryBlocks;
  uint4* const rest = &shared.queries[kRest ? warp : 0][0][kRest ? lane : 0];
  uint32_t alone_turn = 0;  // warp that takes the next short item
  uint32_t parity = 0;
  for_each_item(args, queue, shared, warp, lane, [&](Work& work, const Stages& stages) {
    // Who works on it. Parts of a divided pair have the CTA to themselves: it has at most two of them.
    const bool alone =
        work.rows <= 16 && work.end - work.begin <= kOneWarpTokens && !(work.record->item.flags & abi::kItemSingleHead);
    bool mine = true;
    if (alone) {
      mine = alone_turn == warp;
      alone_turn = alone_turn + 1 == kConsumerWarps ? 0 : alone_turn + 1;
    }
    if (!mine) return;
    const Division division = alone ? Division::alone() : Division::team(work.rows, warp);
    work.first_row = warp % division.row_blocks * 16;
    const Row rows[2] = {find_row(work, work.first_row + lane / 4), find_row(work, work.first_row + lane / 4 + 8)};
    // Who merges is looked up step by step while other loads are on their way; wide heads keep no registers for it. A
    // worker that merges a divided pair finds all rows by the first query token.
    constexpr bool kEarly = kHeadDim <= 192;
    Ending ending{Destination::kOutput, MergeRule::kNone, {abi::kNone, {}}, alone, division.row_blocks};
    const auto find_slot = [&] {
      ending.rule = merge_rule(work);
      if (ending.rule == MergeRule::kNone) return;
      ending.slot.index = find_merge(work, alone || ending.rule == MergeRule::kFirst ? 0 : warp / work.group);
    };
    if (kEarly) find_slot();
    const Queries q = load_queries(args, rows, logit_scale(args, work.record->head), scratch, rest, lane);
    if (kEarly) {
      ending.slot.entry = find_entry(work, ending.slot.index);
      PartList(work, ending.slot.entry).touch(lane);
    }
    State state;
    clear(state);
    run_slices(work, division, rows, q, state, shared, stages, scratch);
    if (!kEarly) {
      find_slot();
      ending.slot.entry = find_entry(work, ending.slot.index);
    }
    finish_item(work, shared, rows, state, ending, parity);
  });
}

}  // namespace fovea::attention
