// The warps that compute plans with shared prefixes: many items, short leaves and tall nodes in one queue. No warp
// waits for the whole CTA: a unit of work belongs to one warp (16 rows of a short item) or one warpgroup (64 rows),
// units go to the warps in turns, and what one of them does at the end of its item passes while the others go on.
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

__device__ __forceinline__ void run_units(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                          uint32_t warp, uint32_t lane) {
  float* const scratch = shared.hook_rows[kRowHooks ? warp : 0];
  uint32_t turn = 0;  // warp that takes the next unit
  for_each_item(args, queue, shared, warp, lane, [&](Work& work, const Stages& stages) {
    const Units units = Units::of(work.rows, work.end - work.begin, (work.record->item.flags & abi::kItemMasked) != 0);
    // Units of several warps start at a multiple of their number.
    turn = (turn + units.warps - 1) / units.warps * units.warps % kConsumerWarps;
    const uint32_t nth = (warp + kConsumerWarps - turn) % kConsumerWarps;
    turn = (turn + units.warps) % kConsumerWarps;
    if (nth < units.warps) {
      work.first_row = nth * 16;
      const Row rows[2] = {find_row(work, work.first_row + lane / 4), find_row(work, work.first_row + lane / 4 + 8)};
      RowMerge merges[2];
      find_merges(work, rows, merges);
      const Queries q = load_queries(args, rows, logit_scale(args, work.record->head), scratch, nullptr, lane);
      find_entries(work, merges);
      find_parts(work, merges);
      State state;
      clear(state);
      const uint32_t arrivals = kConsumerWarps / units.warps;
      if (units.wide) {
        run_wide(work, q, state, shared, stages, arrivals);
      } else {
        run_slices(work, {1, 0, 1, 0, 1, arrivals}, rows, q, state, shared, stages, scratch);
      }
      finish_sums(state);
      end_rows<0>(work, rows[0], merges[0], state);
      end_rows<1>(work, rows[1], merges[1], state);
    }
  });
}

}  // namespace fovea::attention::prefix_forest
