// Shared memory of the prefill kernel, and the rings in it. Used by all files of this folder.
#pragma once

#include "kernels/attention/prefill/config.cuh"
#include "kernels/attention/queue.cuh"

namespace fovea::attention::prefill {

// A ring of tiles that some warps fill and others empty.
template <int kSlots>
struct TileBarriers {
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
};
// Until the use-th tile is there.
template <int kSlots>
__device__ __forceinline__ void wait_full(const TileBarriers<kSlots>& ring, uint32_t use) {
  const RingSlot<kSlots> slot(use);
  ptx::mbarrier_wait(ptx::smem_address(&ring.full[slot.index]), slot.parity);
}
// Until its slot is free of the tile before.
template <int kSlots>
__device__ __forceinline__ void wait_empty(const TileBarriers<kSlots>& ring, uint32_t use) {
  const RingSlot<kSlots> slot(use);
  ptx::mbarrier_wait(ptx::smem_address(&ring.empty[slot.index]), slot.parity ^ 1);
}

// The rows of a tile of queries, by the warp that loads them.
struct TileRows {
  uint64_t out[kBlockRows];                    // where a row's output begins; 0: no such row
  uint32_t row[kBlockRows];                    // of log-sum-exps
  uint32_t low[kBlockRows], high[kBlockRows];  // tokens [low, high) of the run that it sees, if no list says so
  // Tiles [plain_begin, plain_end) are seen whole by all rows of a warpgroup, each of which sees a token behind them.
  uint32_t plain_begin[kGroups], plain_end[kGroups];
};

inline constexpr uint32_t kKeys = 0, kValues = 1;

struct Memory {
  alignas(1024) uint8_t q[kQuerySlots][kBlockRows * kTileRowBytes];
  alignas(1024) uint8_t k[kKvSlots][kBlockTokens * kTileRowBytes];
  alignas(1024) uint8_t v[kKvSlots][kBlockTokens * kTileRowBytes];
  alignas(16) ItemRecord records[kRecords];
  TileBarriers<kQuerySlots> q_ring;
  TileBarriers<kKvSlots> k_ring, v_ring;
  TileRows rows[kQuerySlots];
  uint64_t record_full[kRecords];
  uint64_t record_empty[kRecords];
  // [kKeys, kValues][warpgroup]: it has read all tiles of its latest item alone.
  uint64_t left[2][kGroups];
  // Where rows of a tile of K, and of V, begin in the pool: bytes behind the head's first row. Of loaders by rows.
  alignas(16) uint64_t row_offsets[2][kTma ? 2 : kBlockTokens];
  uint32_t loaded_items[kTileLoaders];  // items whose loads are all on their way
  // Pools that are converted: tiles of K, and of V, as they are stored, row behind row, and their tokens' KvScales.
  alignas(16) uint8_t raw[2][kRawSlots][kConverts ? kBlockTokens * kPoolRowBytes : 16];
  uint32_t raw_scales[2][kRawSlots][kPoolScales ? kBlockTokens : 1];
  TileBarriers<kRawSlots> raw_ring[2];
  // What products with converted keys are multiplied by for base-2 logits, and sums of the rows' elements.
  float row_scales[kQuerySlots][kConverts ? kBlockRows : 1];
  float row_sums[kQuerySlots][kPoolZeros ? kBlockRows : 1];
  // Maxima and sums of the second warpgroup's tiles of an item that is split.
  alignas(16) float4 split_sums[kSplits ? kGroupThreads : 1];
  // Scale and zero of keys.
  alignas(16) float2 key_scales[kScaleSlots][kPoolScales ? kBlockTokens : 1];
};
static_assert(sizeof(Memory) <= FOVEA_PREFILL_SMEM_BYTES, "tune/attention_choice.cc counts less than there is");

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of panels of `panel_bytes`.
__device__ __forceinline__ uint32_t tile_offset(uint32_t row, uint32_t chunk, uint32_t panel_bytes) {
  return chunk / 8 * panel_bytes + row * 128 + ((chunk % 8 ^ (row & 7)) << 4);
}

// The tiles of a run: tile j is tokens [base + j * kBlockTokens, ..); loaded and worked on from the last to the first,
// because those that a causal mask divides are at the end.
struct Tiles {
  uint32_t base;
  uint32_t count;

  __device__ __forceinline__ static Tiles of(const Run& run) {
    const uint32_t base = run.begin & ~(kBlockTokens - 1u);
    return {base, run.end > run.begin ? (run.end - base + kBlockTokens - 1) / kBlockTokens : 0};
  }
};

}  // namespace fovea::attention::prefill
