// The argument of the kernels of decode's matrix products (kernels/model/linear: skinny.cuh for few rows of x,
// batch.cuh for more), and how a product is divided among CTAs. Filled by device/cuda/skinny_linear.h and
// batch_linear.h, read by the kernels. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

inline constexpr uint32_t kLinearWarps = 8;       // of a CTA
inline constexpr uint32_t kLinearMaxTokens = 16;  // rows of x
inline constexpr uint32_t kLinearMaxSplit = 8;    // CTAs of a cluster
inline constexpr uint32_t kLinearSlice = 32;      // numbers along k that a lane's 16 bytes of x are a part of
// Numbers along k that 64 bytes of a row of weights hold: what copies, and the division of k among warps, count in.
constexpr uint32_t linear_weight_slice(bool fp8) { return fp8 ? 2 * kLinearSlice : kLinearSlice; }
// Rows of weights that are multiplied at once, by pairs: neighbours, or a row of the gate and its row of the other
// half.
inline constexpr uint32_t kLinearTilePairs = 4;

// Slices of x that a warp may have: their x lies in its registers, of `blocks` blocks of 8 tokens.
constexpr uint32_t linear_warp_slices(uint32_t blocks) { return 16 / blocks; }
// A warp's ring of so many stages, each a piece of all rows of a tile.
struct LinearRing {
  uint32_t stages = 3;
  uint32_t slices = 8;  // of weights, a divisor of what a warp may have
};
constexpr LinearRing linear_ring(uint32_t blocks) { return {blocks == 1 ? 3u : 2u, 8}; }
// Tiles of each CTA of a cluster whose parts are kept at once: a cluster is a few tiles ahead of the sums.
constexpr uint32_t linear_slots(uint32_t blocks, uint32_t split) {
  return blocks == 1 ? (split <= 2 ? 2 : 1) : (split == 1 ? 2 : split == 2 ? 4 : split == 4 ? 2 : 1);
}
// Dynamic shared memory of a CTA, at most.
constexpr uint32_t linear_smem_bytes(const LinearRing& ring, uint32_t blocks, uint32_t split, bool norm) {
  const uint32_t parts = kLinearWarps * split, slots = linear_slots(blocks, split);
  const uint32_t norms = norm ? kLinearWarps * (linear_warp_slices(blocks) * 64 + 8) + parts * blocks * 32 : 32;
  const uint32_t barriers = kLinearWarps * ring.stages + (1 + split) * slots + 2;
  return (kLinearWarps * ring.stages * 2 * kLinearTilePairs * ring.slices * 64 + slots * parts * blocks * 256 + norms +
          8 * barriers + 127) /
         128 * 128;
}

// The kernel of products of a batch: made for so many rows of x, held by a CTA so.
struct LinearBatch {
  uint32_t tokens = 64;  // rows of x at most: 8, 16, 32 or 64
  uint32_t split = 8;    // CTAs of a cluster, each with a share of k: 2, 4 or 8
  uint32_t stages = 2;   // of a warp's ring
  uint32_t pieces = 2;   // of x that a CTA keeps; of a larger share x is streamed
  uint32_t held = 3;     // tiles for which x is streamed at once
};
inline constexpr uint32_t kBatchMaxTokens = 64;
inline constexpr uint32_t kBatchGroups = 2;  // warpgroups of a CTA that multiply, each rows of its own
inline constexpr uint32_t kBatchThreads = (kBatchGroups + 1) * 128;
// A piece: so many slices of weights along k, of a warp's pairs of rows. Four warps have a tile.
inline constexpr uint32_t kBatchPieceSlices = 8;
inline constexpr uint32_t kBatchWarpPairs = 8;
inline constexpr uint32_t kBatchTilePairs = 4 * kBatchWarpPairs;
// Blocks of 8 tokens that a CTA of the cluster finishes, or CTAs that finish a block; warps that bring a block's x.
constexpr uint32_t batch_owned(const LinearBatch& b) { return b.tokens / 8 > b.split ? b.tokens / 8 / b.split : 1; }
constexpr uint32_t batch_sharers(const LinearBatch& b) { return b.split > b.tokens / 8 ? b.split / (b.tokens / 8) : 1; }
constexpr uint32_t batch_bringers(const LinearBatch& b) {
  return 4 * kBatchGroups > b.tokens / 8 ? 4 * kBatchGroups / (b.tokens / 8) : 1;
}
// Shares of k are as large as shared memory allows beside the rings.
constexpr LinearBatch linear_batch(uint32_t tokens) {
  return tokens == 8    ? LinearBatch{8, 4, 3, 4, 3}
         : tokens == 16 ? LinearBatch{16, 4, 2, 4, 3}
                        : LinearBatch{tokens, 8, 2, 2, 3};
}
// Whether x of k numbers is streamed.
constexpr bool batch_streams(const LinearBatch& b, uint32_t k) {
  const uint32_t share = (k / kLinearSlice + b.split - 1) / b.split;
  return share > b.pieces * kBatchPieceSlices;
}
// Dynamic shared memory of a CTA, at most.
constexpr uint32_t batch_smem_bytes(const LinearBatch& b) {
  const uint32_t x = b.pieces * kBatchPieceSlices * kLinearSlice * b.tokens * 2;
  const uint32_t ring = b.stages * 2 * kBatchWarpPairs * kBatchPieceSlices * 64;
  const uint32_t parts = batch_owned(b) * b.split * 512, squares = b.split * batch_bringers(b) * 8 * batch_owned(b) * 4;
  return (x + 4 * kBatchGroups * (ring + parts + 16 * (b.stages + 1)) + squares + 8 + 1023) / 1024 * 1024;
}

enum class LinearActivation : uint8_t { kNone, kSilu, kGeluTanh, kGelu };

// One product y = x w^T. Clusters of `split` CTAs take pairs of rows of w, the warps of a cluster slices of k.
struct LinearShape {
  const void* w;   // [rows, k], contiguous, 16-byte aligned: of x's type, or e4m3
  uint32_t pairs;  // of rows
  uint32_t half;   // rows from one of a pair to the other: 1, or half of all where the one is the other's gate
  uint32_t k;      // a multiple of slice
  uint32_t split;
  uint32_t clusters;  // or warpgroups, of the kernel of batches
  uint32_t slice;     // linear_weight_slice()
};
static_assert(sizeof(LinearShape) == 32);

struct LinearArgs {
  LinearShape shape;
  const void* x;         // [tokens, k], rows 16-byte aligned
  void* y;               // [tokens, rows or pairs], rows 4-byte aligned
  const void* residual;  // [tokens, ..] of x's type, added to y in its place or elsewhere; rows y_stride apart; or null
  const void* bias;      // [rows] of x's type, or null
  const float* scales;   // of e4m3: [rows], sums are multiplied by them; else null
  const void* norm;      // [k] of x's type: x is divided by its root mean square and multiplied by norm, or norm + 1
  long long x_stride;    // elements
  long long y_stride;
  uint32_t tokens;         // 1 to kLinearMaxTokens, for the batch kernel to kBatchMaxTokens
  uint32_t norm_plus_one;  // 1 | 0
  float norm_eps;
  uint32_t early;    // tiles before the end at which the next kernel may start; as many as there are or more: at once
  uint32_t f32_out;  // 1: y is fp32, without residual and gate; 0: of x's type
};
static_assert(sizeof(LinearArgs) == 32 + 88);

// Slices of k [begin, end) of warp `warp` of a cluster's kLinearWarps * split.
struct LinearSlices {
  uint32_t begin;
  uint32_t end;
};
constexpr LinearSlices linear_slices(const LinearShape& s, uint32_t warp, uint32_t warps) {
  const uint32_t slices = s.k / s.slice, of = kLinearWarps * s.split;
  return {slices * warp / of, slices * (warp + warps) / of};
}

// Pairs of rows [begin, end) of a cluster.
struct LinearPairs {
  uint32_t begin;
  uint32_t end;
};
constexpr LinearPairs linear_pairs(const LinearShape& s, uint32_t cluster) {
  return {static_cast<uint32_t>(static_cast<uint64_t>(s.pairs) * cluster / s.clusters),
          static_cast<uint32_t>(static_cast<uint64_t>(s.pairs) * (cluster + 1) / s.clusters)};
}

}  // namespace fovea::abi
