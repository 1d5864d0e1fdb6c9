// The numbers of an instantiation of the prefill kernel (kernel.cuh), beside those of kernels/attention/config.cuh,
// whose queue, masks and merges it shares. Macros, chosen by tune/attention_choice:
//   FOVEA_BLOCK_TOKENS   KV tokens of a tile: 128, or 64 for wide heads
//   FOVEA_QUERY_SLOTS    tiles of queries in shared memory: 2, or 1 for wide heads
#pragma once

#include "kernels/attention/config.cuh"

namespace fovea::attention::prefill {

inline constexpr int kGroups = 2;  // warpgroups that compute, 64 rows each
inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;
inline constexpr int kComputeWarps = 4 * kGroups;
inline constexpr int kBlockRows = kGroups * kGroupRows;
inline constexpr int kBlockTokens = FOVEA_BLOCK_TOKENS;
inline constexpr int kQuerySlots = FOVEA_QUERY_SLOTS;
inline constexpr int kKvSlots = 2;  // tiles of K, and as many of V
inline constexpr int kCtaThreads = kGroupThreads * (kGroups + 1);

// Tiles lie as panels of 64 dims, rows of 128 bytes under the 128-byte swizzle, as wgmma reads them.
inline constexpr int kTilePanels = kRowBytes / 128;
inline constexpr int kQueryPanelBytes = kBlockRows * 128;
inline constexpr int kKvPanelBytes = kBlockTokens * 128;
inline constexpr int kRowChunks = kRowBytes / 16;

// Warps of the warpgroup that loads: keys, values, queries; the fourth reads the plan.
inline constexpr int kTileLoaders = 3;
inline constexpr int kLoadRegisters = 40;
inline constexpr int kComputeRegisters = 232;

static_assert(FOVEA_ARCH >= 900 && kElementBits == 16 && kQueryBf16 == kMmaBf16 && !kChecked);
static_assert(kHeadDim == 64 || kHeadDim == 128 || kHeadDim == 256);
static_assert(Variant::kSoftmax && !Variant::kHasVisible && !Variant::kHasQuery && !Variant::kHasOutput &&
              !kTransformsKv);

}  // namespace fovea::attention::prefill
