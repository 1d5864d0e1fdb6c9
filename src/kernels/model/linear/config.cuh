// What an instantiation of the kernel of decode's products is made for, from the macros that jit/linear_spec writes,
// the numbers that follow, and its shared memory.
//   FOVEA_ARCH 900, FOVEA_LINEAR_BF16 1 | 0 (halves), FOVEA_LINEAR_FP8 1 | 0 (weights are e4m3), FOVEA_LINEAR_BLOCKS 1
//   | 2 of 8 tokens, FOVEA_LINEAR_SPLIT (LinearShape::split), FOVEA_LINEAR_NORM 1 | 0, FOVEA_LINEAR_ACTIVATION
//   (abi::LinearActivation), FOVEA_LINEAR_STAGES and FOVEA_LINEAR_STAGE_SLICES (LinearRing), FOVEA_LINEAR_CTAS an SM
#pragma once

#include "abi/linear_args.h"

namespace fovea::linear {

inline constexpr bool kBf16 = FOVEA_LINEAR_BF16 != 0;
inline constexpr bool kFp8 = FOVEA_LINEAR_FP8 != 0;
inline constexpr uint32_t kBlocks = FOVEA_LINEAR_BLOCKS;
inline constexpr uint32_t kSplit = FOVEA_LINEAR_SPLIT;
inline constexpr bool kNorm = FOVEA_LINEAR_NORM != 0;
inline constexpr auto kActivation = static_cast<abi::LinearActivation>(FOVEA_LINEAR_ACTIVATION);
inline constexpr bool kGated = kActivation != abi::LinearActivation::kNone;

inline constexpr uint32_t kWarps = abi::kLinearWarps;
inline constexpr uint32_t kParts = kWarps * kSplit;  // of a sum, one a warp of the cluster
inline constexpr uint32_t kTokens = 8 * kBlocks;
inline constexpr uint32_t kTileRows = 2 * abi::kLinearTilePairs;  // of weights
inline constexpr uint32_t kXSlices = abi::linear_warp_slices(kBlocks);
inline constexpr uint32_t kWeightSlice = abi::linear_weight_slice(kFp8);
inline constexpr uint32_t kXInSlice = kWeightSlice / abi::kLinearSlice;  // slices of x that a slice of weights meets
inline constexpr uint32_t kSlices = kXSlices / kXInSlice;

// A stage of a warp's ring: a piece of all rows of a tile. Pieces begin at multiples of 128 bytes, for bulk copies to
// places between them take a third longer; that two rows then meet in a bank costs nothing.
inline constexpr abi::LinearRing kRing = {FOVEA_LINEAR_STAGES, FOVEA_LINEAR_STAGE_SLICES};
inline constexpr uint32_t kPieceBytes = kRing.slices * 64;
inline constexpr uint32_t kStageBytes = kTileRows * kPieceBytes;
inline constexpr bool kBulk = !kFp8;  // how stages are copied; see weights.cuh
static_assert(kSlices % kRing.slices == 0 && kStageBytes % 128 == 0);

// Parts of sums of so many tiles wait for the warp that adds them.
inline constexpr uint32_t kSlots = abi::linear_slots(kBlocks, kSplit);

struct SharedMemory {
  alignas(128) uint8_t ring[kWarps][kRing.stages][kStageBytes];
  float2 parts[kSlots][kParts][kBlocks][32];
  alignas(16) uint8_t norm[kNorm ? kWarps : 1][kNorm ? kXSlices * 64 : 16];  // the norm's weights, of a warp's slices
  float squares[kNorm ? kParts : 1][kNorm ? kTokens : 1];                    // sums over the warps' slices of k
  uint64_t norm_there[kNorm ? kWarps : 1];
  uint64_t squares_there;  // of all warps of a cluster
  uint64_t full[kWarps][kRing.stages];
  uint64_t part_there[kSlots];          // of the tiles that this CTA adds up: all warps of the cluster have given
  uint64_t parts_read[kSplit][kSlots];  // of the tiles that CTA i of the cluster adds up
};
static_assert(sizeof(SharedMemory) <= abi::linear_smem_bytes(kRing, kBlocks, kSplit, kNorm));

}  // namespace fovea::linear
