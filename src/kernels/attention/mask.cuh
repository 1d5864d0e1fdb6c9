// Which (row, token) pairs of a slice are seen. Used by the consumers for slices at the ends of an item and in items
// that a mask touches.
#pragma once

#include "kernels/attention/rows.cuh"

namespace fovea::attention {

// 16 tokens of a stage in shared memory.
struct Slice {
  uint32_t token;     // the first of them, of the run
  uint32_t in_stage;  // the same, of the stage
  uint32_t k_tile;    // of the stage
  uint32_t v_tile;
  uint32_t scales;  // of the stage's keys, then of its values; with a scale a token only
};

// Pairs of a lane as bits: bit 4h + 2n + e is row r + 8h and token 8n + 2c + e of the slice (r = lane / 4, c = lane %
// 4), as in the fragments of the first product.
inline constexpr uint32_t kAllVisible = 0xff;

__device__ __forceinline__ uint32_t slice_token(uint32_t slice, uint32_t n, uint32_t e, uint32_t lane) {
  return slice + 8 * n + 2 * (lane & 3) + e;
}

// Position of a token of the run in its request.
__device__ __forceinline__ int32_t token_position(const abi::AttentionArgs& args, const abi::BlockRow& block_row,
                                                  uint32_t token) {
  if (block_row.positions_begin == abi::kNone) return block_row.position_base + static_cast<int32_t>(token);
  const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const uint32_t entry = token / entry_tokens;
  return args.kv_positions[block_row.positions_begin + entry] + static_cast<int32_t>(token - entry * entry_tokens);
}

// The lowest and highest position among the rows of the warp, for a quick look at whole slices.
struct PositionRange {
  int32_t low;
  int32_t high;
};
__device__ __forceinline__ PositionRange position_range(const Row (&rows)[2]) {
  PositionRange range{0x7fffffff, static_cast<int32_t>(0x80000000u)};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows[h].valid) continue;
    range.low = min(range.low, rows[h].position);
    range.high = max(range.high, rows[h].position);
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    range.low = min(range.low, __shfl_xor_sync(~0u, range.low, step));
    range.high = max(range.high, __shfl_xor_sync(~0u, range.high, step));
  }
  return range;
}

// False when every row sees every token of the slice.
__device__ __forceinline__ bool may_mask(const Work& work, const PositionRange& range, uint32_t slice) {
  if (slice < work.begin || slice + kSliceTokens > work.end) return true;
  if (!(work.record->item.flags & abi::kItemMasked)) return false;
  const abi::BlockRow& block_row = work.record->block_row;
  if (block_row.mask == abi::MaskKind::kNone) return false;
  if (block_row.mask == abi::MaskKind::kBits || block_row.positions_begin != abi::kNone) return true;
  const int32_t first = block_row.position_base + static_cast<int32_t>(slice);
  if (first + kSliceTokens - 1 > range.low) return true;
  return block_row.mask == abi::MaskKind::kWindow && first < range.high - block_row.window_left;
}

__device__ __forceinline__ uint32_t visible_pairs(const Work& work, const Row (&rows)[2], uint32_t slice) {
  const abi::BlockRow& block_row = work.record->block_row;
  const abi::MaskKind mask = work.record->item.flags & abi::kItemMasked ? block_row.mask : abi::MaskKind::kNone;
  uint32_t visible = 0;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t token = slice_token(slice, i / 2, i % 2, work.lane);
    if (token < work.begin || token >= work.end) continue;
    int32_t position = 0;
    if (mask == abi::MaskKind::kCausal || mask == abi::MaskKind::kWindow) {
      position = token_position(*work.args, block_row, token);
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      bool sees = rows[h].valid;
      if (mask == abi::MaskKind::kBits) {
        if (sees) {
          const uint64_t row = work.record->item.row_begin - block_row.row_begin + rows[h].token;
          const uint64_t bit = block_row.mask_offset + row * block_row.mask_stride + token;
          sees = work.args->mask_bits[bit >> 3] >> (bit & 7) & 1;
        }
      } else if (mask != abi::MaskKind::kNone) {
        sees = sees && position <= rows[h].position;
        if (mask == abi::MaskKind::kWindow && block_row.window_left >= 0) {
          sees = sees && position >= rows[h].position - block_row.window_left;
        }
      }
      if (sees) visible |= 1u << (4 * h + i);
    }
  }
  return visible;
}

}  // namespace fovea::attention
