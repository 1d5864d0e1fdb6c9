// The warps that compute plans with shared prefixes: many items, short leaves and tall nodes in one queue. Nobody waits
// for the CTA: a unit of work belongs to one warp (16 rows of a short item) or one warpgroup (64 rows), units go to the
// warps in turns, and what one of them does at the end of its item passes while the others go on.
#pragma once

#include "kernels/attention/general/consumer.cuh"
#include "kernels/attention/prefix_forest/parts.cuh"
#include "kernels/attention/prefix_forest/wide.cuh"

namespace fovea::attention::prefix_forest {

// Tokens up to which 16 rows go to one warp: its slices then take no longer than the memory needs for the items of the
// other warps.
inline constexpr uint32_t kUnitTokens = 256;

// How an item is divided. warps: that work on it, a power of two; each has 16 rows.
struct Units {
  uint32_t warps;
  bool wide;

  __device__ __forceinline__ static Units of(uint32_t rows, uint32_t tokens, bool masked) {
    const uint32_t blocks = rows <= 16 ? 1 : rows <= 32 ? 2 : rows <= 64 ? 4 : 8;
    const bool is_short = rows <= 16 ? tokens <= kUnitTokens : rows <= 64 && tokens <= kStageTokens;
    if (is_short || masked) return {blocks, false};
    return {blocks < kGroupWarps ? kGroupWarps : blocks, true};
  }
};

// 16 rows of an item against all its tokens, by one warp.
__device__ __forceinline__ void run_narrow(const abi::AttentionArgs& args, const Work& work, const Row (&rows)[2],
                                           const Queries& q, State& state, SharedMemory& shared, uint32_t base,
                                           uint32_t stages, uint32_t use, uint32_t arrivals, uint32_t lane) {
  const PositionRange range = position_range(rows);
  for (uint32_t k = 0; k < stages; ++k) {
    const RingSlot<kStages> slot(use + k);
    wait_for_stage(shared, slot.index, slot.parity, use + k);
    const uint32_t k_tile = ptx::smem_address(shared.kv[slot.index][0]);
    for (uint32_t s = 0; s < kSlices && work.first_row < work.rows; ++s) {
      const uint32_t slice = base + k * kStageTokens + s * kSliceTokens;
      if (slice >= work.end || slice + kSliceTokens <= work.begin) continue;
      if (may_hide(work, range, slice)) {
        run_slice<true>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, s * kSliceTokens, lane);
      } else {
        run_slice<false>(args, work, rows, q, state, k_tile, k_tile + kTileBytes, slice, s * kSliceTokens, lane);
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), arrivals, lane);
  }
}

__device__ __forceinline__ void run_units(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                          uint32_t warp, uint32_t lane) {
  Work work{};
  work.header = queue.header;
  work.group = queue.header->counts.group;
  work.q_heads = queue.header->counts.num_kv_heads * work.group;
  float* const scratch = shared.hook_rows[kRowHooks ? warp : 0];
  uint32_t use = 0;
  uint32_t turn = 0;  // warp that takes the next unit
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
    const Units units = Units::of(work.rows, run.end - run.begin, (record.item.flags & abi::kItemMasked) != 0);
    // Units of several warps start at a multiple of their number.
    turn = (turn + units.warps - 1) / units.warps * units.warps % kConsumerWarps;
    const uint32_t nth = (warp + kConsumerWarps - turn) % kConsumerWarps;
    turn = (turn + units.warps) % kConsumerWarps;
    if (nth < units.warps) {
      work.first_row = nth * 16;
      const Row rows[2] = {find_row(args, work, work.first_row + lane / 4),
                           find_row(args, work, work.first_row + lane / 4 + 8)};
      RowMerge merges[2];
      find_merges(args, work, rows, merges);
      const Queries q = load_queries(args, rows, logit_scale(args, record.head), scratch, nullptr, lane);
      find_entries(args, work, merges);
      find_parts(args, work, merges, lane);
      State state;
      clear(state);
      const uint32_t arrivals = kConsumerWarps / units.warps;
      if (units.wide) {
        run_wide(work, q, state, shared, run.base(), stages, use, arrivals, 2 + warp / kGroupWarps,
                 warp % kGroupWarps * 32 + lane, lane);
      } else {
        run_narrow(args, work, rows, q, state, shared, run.base(), stages, use, arrivals, lane);
      }
      finish_sums(state);
      end_rows<0>(args, work, rows[0], merges[0], state, lane);
      end_rows<1>(args, work, rows[1], merges[1], state, lane);
    }
    use += stages;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[slot.index]));
  }
}

}  // namespace fovea::attention::prefix_forest
