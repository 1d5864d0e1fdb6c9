// The numbers of an instantiation of the prefill kernel (kernel.cuh), beside those of kernels/attention/config.cuh,
// whose queue, masks and merges it shares. Macros, chosen by tune/attention_choice:
//   FOVEA_BLOCK_TOKENS   KV tokens of a tile: 128, or 64 above head dim 128
//   FOVEA_QUERY_SLOTS    tiles of queries in shared memory: 2, or 1 at head dim 256
//   FOVEA_MERGE_FAN      parts of a row that are merged in one step
// A pool of fp8 is converted as it is loaded (convert.cuh): all behind that sees tiles of halves.
#pragma once

namespace fovea::attention::prefill {
inline constexpr int kPoolType = FOVEA_KV_DTYPE;  // abi::KvDType
}
#if FOVEA_KV_DTYPE == 3
#undef FOVEA_KV_DTYPE
#define FOVEA_KV_DTYPE 1
#define FOVEA_CONVERTS 1
#else
#define FOVEA_CONVERTS 0
#endif

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

// Tiles lie as panels of 64 dims, rows of 128 bytes under the 128-byte swizzle, as wgmma reads them. Of the last panel
// of head dims that are not so many, products read what there is.
inline constexpr int kTilePanels = (kRowBytes + 127) / 128;
inline constexpr int kTileRowBytes = kTilePanels * 128;
inline constexpr int kQueryPanelBytes = kBlockRows * 128;
inline constexpr int kKvPanelBytes = kBlockTokens * 128;
inline constexpr int kRowChunks = kRowBytes / 16;

// Warps of the warpgroup that loads: keys, values, queries; the fourth reads the plan.
inline constexpr int kTileLoaders = 3;
inline constexpr int kLoadRegisters = 40;
inline constexpr int kComputeRegisters = 232;

// Pools that are converted: a row of theirs, and what a warp has on its way, 16 bytes a lane and copy.
inline constexpr bool kConverts = FOVEA_CONVERTS != 0;
inline constexpr int kPoolRowBytes = kConverts ? kHeadDim : kRowBytes;
inline constexpr int kRawCopies = 16;

static_assert(FOVEA_ARCH >= 900 && kElementBits == 16 && (kQueryBf16 == kMmaBf16 || kConverts) && !kChecked);
static_assert(kPoolType == static_cast<int>(abi::KvDType::kF8E4M3) || !kConverts);
static_assert(kHeadDim == 64 || kHeadDim == 128 || kHeadDim == 256 ||
              (!kConverts && (kHeadDim == 80 || kHeadDim == 96 || kHeadDim == 112 || kHeadDim == 192)));
static_assert(Variant::kSoftmax && !Variant::kHasVisible && !Variant::kHasQuery && !Variant::kHasOutput &&
              !kTransformsKv);

}  // namespace fovea::attention::prefill
