// A slice of 16 tokens as warps take it, and how its keys and its values lie in shared memory. FOVEA_SLICES, from
// tune/attention_choice.cc: slices that the arithmetic takes together.
#pragma once

#include "kernels/attention/general/finish.cuh"

namespace fovea::attention::warp_per_worker {

inline constexpr int kTokens = 16;                 // of a slice
inline constexpr int kSlotSlices = FOVEA_SLICES;   // of a slot, which the arithmetic takes together
inline constexpr uint32_t kRows = 8;               // (query token, query head) rows of an item at most
inline constexpr int kTile = kTokens * kRowBytes;  // bytes of K, or of V
inline constexpr uint32_t kSlicePanelStride = kTokens * kPanelBytes;

// Byte offset of a 16-byte chunk of a token's row in a tile.
__device__ __forceinline__ uint32_t tile_offset(uint32_t token, uint32_t chunk) {
  return chunk / kPanelChunks * kSlicePanelStride + token * kPanelBytes +
         ((chunk % kPanelChunks ^ swizzle_of(token)) << 4);
}

// A lane's addresses for ldmatrix: chunk kFirst + chunk of token `token`, kFirst even.
struct LaneAddress {
  uint32_t base;
  uint32_t chunk;

  __device__ __forceinline__ LaneAddress(uint32_t tile, uint32_t token, uint32_t chunk_in) : chunk(chunk_in) {
    base = tile + token * kPanelBytes;
    if constexpr (kPanelChunks > 1) base |= (chunk ^ swizzle_of(token)) << 4;
  }
  template <uint32_t kFirst>
  __device__ __forceinline__ uint32_t of() const {
    if constexpr (kPanelChunks == 1) return base + (kFirst + chunk) * kSlicePanelStride;
    return (base ^ (kFirst % kPanelChunks << 4)) + kFirst / kPanelChunks * kSlicePanelStride;
  }
};

}  // namespace fovea::attention::warp_per_worker
