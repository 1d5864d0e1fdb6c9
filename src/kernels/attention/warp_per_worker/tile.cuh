// A slice of 16 tokens as warps take it, how its keys and its values lie in shared memory, and the rows that meet them.
// From tune/attention_choice.cc: FOVEA_SLICES that the arithmetic takes together; FOVEA_ROW_BLOCKS of 8 rows a warp,
// and FOVEA_TEAM_WARPS, the warps of a worker, each of which has rows of its own against the same slices.
#pragma once

#include "kernels/attention/combine.cuh"

namespace fovea::attention::warp_per_worker {

inline constexpr int kTokens = 16;                // of a slice
inline constexpr int kSlotSlices = FOVEA_SLICES;  // of a slot, which the arithmetic takes together
inline constexpr int kRowBlocks = FOVEA_ROW_BLOCKS;
inline constexpr uint32_t kRows = 8 * kRowBlocks;  // (query token, query head) rows of a warp at most
inline constexpr uint32_t kTeamWarps = FOVEA_TEAM_WARPS;
inline constexpr bool kDrafts = kRowBlocks > 1;    // items may have several query tokens, each with a mask of its own
inline constexpr int kTile = kTokens * kRowBytes;  // bytes of K, or of V
using SliceTile = Tile<kTokens, true>;

static_assert(kRowBlocks == 1 || kRowBlocks == 2, "queries of two blocks of rows are one fragment");
static_assert(kTeamWarps == 1 || kTeamWarps == 2, "one brings keys, the other values");

// The warps of a worker wait for one another.
__device__ __forceinline__ void sync_team(uint32_t warp) {
  if constexpr (kTeamWarps == 1) {
    __syncwarp();
  } else {
    ptx::barrier_sync(1 + warp / kTeamWarps, 32 * kTeamWarps);
  }
}

}  // namespace fovea::attention::warp_per_worker
