// What an instantiation of the kernel of products of a batch is made for, from the macros that jit/linear_spec writes,
// the numbers that follow, and its shared memory.
//   FOVEA_ARCH 900, FOVEA_BATCH_BF16 1 | 0 (halves), FOVEA_BATCH_NORM 1 | 0, FOVEA_BATCH_ACTIVATION
//   (abi::LinearActivation), FOVEA_BATCH_STREAMED 1 | 0 (abi::batch_streams()), and what abi::LinearBatch says:
//   FOVEA_BATCH_TOKENS, FOVEA_BATCH_SPLIT, FOVEA_BATCH_STAGES, FOVEA_BATCH_PIECES, FOVEA_BATCH_HELD
#pragma once

#include "abi/linear_args.h"

namespace fovea::batch {

inline constexpr bool kNorm = FOVEA_BATCH_NORM != 0;
inline constexpr auto kActivation = static_cast<abi::LinearActivation>(FOVEA_BATCH_ACTIVATION);
inline constexpr bool kGated = kActivation != abi::LinearActivation::kNone;
inline constexpr bool kStreamed = FOVEA_BATCH_STREAMED != 0;
inline constexpr bool kBf16 = FOVEA_BATCH_BF16 != 0;
inline constexpr abi::LinearBatch kBatch = {FOVEA_BATCH_TOKENS, FOVEA_BATCH_SPLIT, FOVEA_BATCH_STAGES,
                                            FOVEA_BATCH_PIECES, FOVEA_BATCH_HELD};
inline constexpr uint32_t kTokens = kBatch.tokens;
inline constexpr uint32_t kBlocks = kTokens / 8;
inline constexpr uint32_t kSplit = kBatch.split;
inline constexpr uint32_t kStages = kBatch.stages;
inline constexpr uint32_t kPieces = kBatch.pieces;
inline constexpr uint32_t kHeld = kStreamed ? kBatch.held : 1;  // tiles whose sums are kept

// Two warpgroups multiply, each rows of weights of its own; the warps of a third copy for them.
inline constexpr uint32_t kGroups = abi::kBatchGroups;
inline constexpr uint32_t kWarps = 4 * kGroups;
inline constexpr uint32_t kProducers = 4;
static_assert(abi::kBatchThreads == 32 * (kWarps + kProducers));

// 64 bytes of a row of weights are a slice of k, a few slices of a warp's 16 rows a piece, which a stage of its ring
// holds. x lies in panels of 64 numbers along k, as products read their second operand.
inline constexpr uint32_t kPieceSlices = abi::kBatchPieceSlices;
inline constexpr uint32_t kPieceBytes = kPieceSlices * 64;
inline constexpr uint32_t kStageBytes = 2 * abi::kBatchWarpPairs * kPieceBytes;
inline constexpr uint32_t kPanelBytes = kTokens * 128;
inline constexpr uint32_t kPiecePanels = kPieceSlices / 2;

// A block of 8 tokens is finished by one CTA of the cluster, or by some for different warps' rows.
inline constexpr uint32_t kOwned = abi::batch_owned(kBatch);      // blocks that a CTA finishes
inline constexpr uint32_t kSharers = abi::batch_sharers(kBatch);  // CTAs that finish a block
inline constexpr uint32_t kFinishers = kSplit / kSharers;         // CTAs that finish a warp's rows
inline constexpr uint32_t kPartBytes = kOwned * kSplit * 512;
// Warps that bring a block's x, slice by slice in turn.
inline constexpr uint32_t kBringers = abi::batch_bringers(kBatch);

struct SharedMemory {
  alignas(1024) uint8_t x[kPieces * kPiecePanels][kPanelBytes];
  alignas(128) uint8_t ring[kWarps][kStages][kStageBytes];
  float4 parts[kWarps][kOwned][kSplit][32];
  float squares[kNorm ? kSplit * kBringers : 1][kNorm ? 8 * kOwned : 1];  // of the tokens that the CTA finishes
  uint64_t squares_there;
  uint64_t full[kWarps][kStages];
  uint64_t empty[kWarps][kStages];
  uint64_t part_there[kWarps];
  uint64_t parts_read[kWarps];
};
static_assert(sizeof(SharedMemory) <= abi::batch_smem_bytes(kBatch));

// The CTA's share of k.
__device__ __forceinline__ abi::LinearSlices slices_of(const abi::LinearShape& s, uint32_t cta) {
  const uint32_t all = s.k / abi::kLinearSlice;
  return {all * cta / kSplit, all * (cta + 1) / kSplit};
}
__device__ __forceinline__ uint32_t pieces_of(abi::LinearSlices slices) {
  return (slices.end - slices.begin + kPieceSlices - 1) / kPieceSlices;
}

// The rows of a warpgroup, in tiles of as many pairs each as fit.
struct Tiles {
  uint32_t begin, end;     // pairs
  uint32_t count, height;  // the same in all warpgroups; of pairs

  __device__ __forceinline__ Tiles(const abi::LinearShape& s, uint32_t group) {
    const abi::LinearPairs pairs = abi::linear_pairs(s, group);
    begin = pairs.begin;
    end = pairs.end;
    const uint32_t most = (s.pairs + s.clusters - 1) / s.clusters;
    count = (most + abi::kBatchTilePairs - 1) / abi::kBatchTilePairs;
    height = (most + count - 1) / count;
  }
  // The pairs of warp `warp` of the four.
  __device__ __forceinline__ uint32_t first(uint32_t tile, uint32_t warp) const {
    return begin + tile * height + warp * height / 4;
  }
  __device__ __forceinline__ uint32_t pairs(uint32_t tile, uint32_t warp) const {
    const uint32_t at = first(tile, warp), own = (warp + 1) * height / 4 - warp * height / 4;
    return at < end ? min(own, end - at) : 0;
  }
};

}  // namespace fovea::batch
