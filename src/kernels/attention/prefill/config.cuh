// The numbers of an instantiation of the prefill kernel (kernel.cuh), beside those of kernels/attention/config.cuh,
// whose queue, masks and merges it shares. Macros, chosen by tune/attention_choice:
//   FOVEA_BLOCK_TOKENS   KV tokens of a tile: 128, or 64 above head dim 128; half of that where pools are converted,
//                        but fp8 at head dim 64 without a scale a token
//   FOVEA_QUERY_SLOTS    tiles of queries in shared memory: 2, or 1 at large head dims
//   FOVEA_KV_SLOTS       tiles of K, and of V, in shared memory: 2, or 3 of pools that are converted
//   FOVEA_RAW_SLOTS      tiles of K, and of V, in shared memory as they are stored; 1 where nothing is converted
//   FOVEA_MERGE_FAN      parts of a row that are merged in one step
// KV of 8 and 4 bits is converted (convert.cuh): all behind that sees tiles of halves.
#pragma once

namespace fovea::attention::prefill {
inline constexpr int kPoolType = FOVEA_KV_DTYPE;  // abi::KvDType
#if FOVEA_KV_DTYPE >= 3
inline constexpr bool kConverts = true;
#undef FOVEA_KV_DTYPE
#define FOVEA_KV_DTYPE 1
#else
inline constexpr bool kConverts = false;
#endif
#if defined(FOVEA_ROTATED)
inline constexpr bool kPoolRotated = FOVEA_ROTATED != 0;
#undef FOVEA_ROTATED
#else
inline constexpr bool kPoolRotated = false;
#endif
#if defined(FOVEA_TOKEN_SCALES)
inline constexpr bool kPoolScales = FOVEA_TOKEN_SCALES != 0 || kPoolType > 3;  // an abi::KvScale for each token
#undef FOVEA_TOKEN_SCALES
#else
inline constexpr bool kPoolScales = kPoolType > 3;
#endif
}  // namespace fovea::attention::prefill

#include "kernels/attention/config.cuh"

namespace fovea::attention::prefill {

inline constexpr int kGroups = 2;  // warpgroups that compute, 64 rows each
inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;
inline constexpr int kComputeWarps = 4 * kGroups;
inline constexpr int kBlockRows = kGroups * kGroupRows;
inline constexpr int kBlockTokens = FOVEA_BLOCK_TOKENS;
inline constexpr int kQuerySlots = FOVEA_QUERY_SLOTS;
// Tiles of K, and as many of V: a third where they are converted, and a warpgroup that has every other tile gives one
// back when it wants the next.
inline constexpr int kKvSlots = FOVEA_KV_SLOTS;

// Tiles lie as panels of 64 dims, rows of 128 bytes under the 128-byte swizzle, as wgmma reads them. Of the last panel
// of head dims that are not so many, products read what there is.
inline constexpr int kTilePanels = (kRowBytes + 127) / 128;
inline constexpr int kTileRowBytes = kTilePanels * 128;
inline constexpr int kQueryPanelBytes = kBlockRows * 128;
inline constexpr int kKvPanelBytes = kBlockTokens * 128;
inline constexpr int kRowChunks = kRowBytes / 16;

// Warps of the warpgroup that loads: keys, values, queries; the fourth reads the plan. Behind them a warpgroup that
// converts: two warps keys, two values.
inline constexpr int kTileLoaders = 3;
inline constexpr int kTileConverters = 2;  // of K, and of V
inline constexpr int kConverterWarps = kConverts ? 2 * kTileConverters : 0;
inline constexpr int kCtaThreads = kGroupThreads * (kGroups + 1) + 32 * kConverterWarps;
inline constexpr int kLoadRegisters = !kConverts || (kHeadDim == 256 && kPoolScales) ? 40
                                      : kHeadDim == 128 && !kPoolScales              ? 56
                                                                                     : 48;
inline constexpr int kComputeRegisters = kConverts ? 256 - kLoadRegisters : 232;

// Rows as they are stored.
inline constexpr int kPoolBits = kPoolType == static_cast<int>(abi::KvDType::kI4) ? 4 : kConverts ? 8 : 16;
inline constexpr int kPoolRowBytes = kHeadDim * kPoolBits / 8;
inline constexpr int kRawSlots = FOVEA_RAW_SLOTS;
inline constexpr bool kPoolZeros = kPoolType > static_cast<int>(abi::KvDType::kF8E4M3);
// Values, scales times what is stored, may be beyond halves: they are converted to half of that.
inline constexpr float kValueFactor = kPoolScales ? 2.0f : 1.0f;
// Items of up to 64 rows and this many tiles are split: both warpgroups have all rows, and every other tile each. Tiles
// of 16 bits come from memory no faster than one warpgroup takes them; at head dims 112 and 256 registers are few.
inline constexpr bool kSplits = kConverts && kHeadDim != 112 && kHeadDim != 256;
inline constexpr uint32_t kLeastSplitTiles = 4;
static_assert(!kSplits || kKvSlots > 2);
// Tiles whose keys' scales are kept: a softmax reads them when K's slot is free. Where items are split, once more when
// it starts over behind the next tile; the other warpgroup is then an item alone and what fits into the ring ahead at
// most, 6 tiles. Elsewhere an item alone may be long, so that its last keys are given back when their scales are read.
inline constexpr int kScaleSlots = kSplits ? 8 : 4;
inline constexpr bool kKeepsLastKeys = kPoolScales && !kSplits;
static_assert(kScaleSlots >= (kSplits ? static_cast<int>(kLeastSplitTiles) - 1 + kKvSlots + 1 : 4));

static_assert(FOVEA_ARCH >= 900 && kElementBits == 16 && (kQueryBf16 == kMmaBf16 || kConverts) && !kChecked);
static_assert(kHeadDim == 64 || kHeadDim == 80 || kHeadDim == 96 || kHeadDim == 112 || kHeadDim == 128 ||
              kHeadDim == 192 || kHeadDim == 256);
static_assert(kPoolRowBytes % 16 == 0 && (!kPoolRotated || (kHeadDim & (kHeadDim - 1)) == 0));
static_assert(Variant::kSoftmax && !Variant::kHasVisible && !Variant::kHasQuery && !Variant::kHasOutput &&
              !kTransformsKv);

}  // namespace fovea::attention::prefill
