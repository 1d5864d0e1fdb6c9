// A slice of 16 tokens as warps take it, and how its keys and its values lie in shared memory. FOVEA_SLICES, from
// tune/attention_choice.cc: slices that the arithmetic takes together.
#pragma once

#include "kernels/attention/combine.cuh"

namespace fovea::attention::warp_per_worker {

inline constexpr int kTokens = 16;                 // of a slice
inline constexpr int kSlotSlices = FOVEA_SLICES;   // of a slot, which the arithmetic takes together
inline constexpr uint32_t kRows = 8;               // (query token, query head) rows of an item at most
inline constexpr int kTile = kTokens * kRowBytes;  // bytes of K, or of V
using SliceTile = Tile<kTokens, true>;

}  // namespace fovea::attention::warp_per_worker
