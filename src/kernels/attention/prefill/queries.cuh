// The warp that loads queries, row by row, because the rows of a tile are (query token, query head) pairs that lie
// anywhere; with them goes what computing warps ask of a row. Used by kernel.cuh.
#pragma once

#include "kernels/attention/prefill/records.cuh"
#include "kernels/attention/prefill/stored.cuh"

namespace fovea::attention::prefill {

inline constexpr uint32_t kQueryRows = kBlockRows / 32;  // of a tile: lane, lane + 32 ..

// Copies 32 rows to rows first .. of a tile. own: where the lane's begins behind q, in units of 16 bytes; kNone: zeros,
// which keep sums small.
__device__ __forceinline__ void copy_rows(uint32_t tile, uint32_t first, const uint8_t* q, uint32_t own,
                                          uint32_t lane) {
#pragma unroll 4
  for (uint32_t i = 0; i < kRowChunks; ++i) {
    const uint32_t nth = i * 32 + lane;
    const uint32_t r = nth / kRowChunks;
    const uint32_t chunk = nth % kRowChunks;
    const uint32_t unit = __shfl_sync(~0u, own, r);
    const bool there = unit != abi::kNone;
    ptx::cp_async_16(tile + tile_offset(first + r, chunk, kQueryPanelBytes),
                     q + (uint64_t{there ? unit : 0} + chunk) * 16, there ? 16 : 0);
  }
}

// Queries that meet converted keys, which copy_rows() brought to 32 rows of a tile: rotated as those are, times a power
// of two where that keeps them in the range of halves, and halves. scales: of the tile's rows, what products are
// multiplied by for logits, `scale` without hooks on them; its sign goes to the queries. sums: of the rows' elements.
// Rows from `count` on are zeros. A row's lanes are a power of two of them.
__device__ __forceinline__ void halve_rows(uint8_t* tile, float* scales, float* sums, uint32_t first, uint32_t count,
                                           float scale, uint32_t lane) {
  constexpr uint32_t kLanes = kRowChunks > 16 ? 32 : kRowChunks > 8 ? 16 : 8;
  if (lane >= count) {
    scales[first + lane] = 1e-30f;
    if constexpr (kPoolZeros) sums[first + lane] = 0.0f;
  }
  __syncwarp();
#pragma unroll 2
  for (uint32_t i = 0; i < kLanes && i * (32 / kLanes) < count; ++i) {
    const uint32_t row = first + i * (32 / kLanes) + lane / kLanes;
    const uint32_t chunk = lane % kLanes;
    const bool there = chunk < kRowChunks;
    auto& place = *reinterpret_cast<uint4*>(tile + tile_offset(row, there ? chunk : 0, kQueryPanelBytes));
    const uint4 words = there ? place : uint4{0, 0, 0, 0};
    float x[8] = {ptx::unpack_low<kQueryBf16>(words.x), ptx::unpack_high<kQueryBf16>(words.x),
                  ptx::unpack_low<kQueryBf16>(words.y), ptx::unpack_high<kQueryBf16>(words.y),
                  ptx::unpack_low<kQueryBf16>(words.z), ptx::unpack_high<kQueryBf16>(words.z),
                  ptx::unpack_low<kQueryBf16>(words.w), ptx::unpack_high<kQueryBf16>(words.w)};
    rotate_if<1, kPoolRotated ? kRowChunks / 2 : 0>(x, lane);
    float factor = 1.0f;
    if constexpr (kQueryBf16 || kPoolRotated) {
      float most = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) most = fmaxf(most, fabsf(x[e]));
#pragma unroll
      for (uint32_t step = 4; step < kLanes; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      factor = range_factor(most);
    }
    factor = copysignf(factor, scale);
    uint32_t to[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) to[w] = ptx::pack2<false>(x[2 * w] * factor, x[2 * w + 1] * factor);
    if (there) place = uint4{to[0], to[1], to[2], to[3]};
    if constexpr (kPoolZeros) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < 4; ++w) sum += ptx::unpack_low<false>(to[w]) + ptx::unpack_high<false>(to[w]);
#pragma unroll
      for (uint32_t step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (chunk == 0) sums[row] = sum;
    }
    // A scale of 0 times a masked logit would be NaN.
    if (chunk == 0) scales[row] = fmaxf(scale / factor, 1e-30f);
  }
}

// What the rows of an item see. By a whole warp.
__device__ __forceinline__ void find_limits(const abi::AttentionArgs& args, const ItemRecord& record,
                                            const uint32_t (&token)[kQueryRows], const int32_t (&position)[kQueryRows],
                                            TileRows& rows, uint32_t lane) {
  constexpr uint32_t kOfGroup = kQueryRows / kGroups;
  const Run run = run_of(args, record);
  const uint32_t base = Tiles::of(run).base;
  const abi::BlockRow& block_row = record.block_row;
  const bool listed = is_listed(record);
  const bool by_position = mask_of(record) != abi::MaskKind::kNone && !listed;
  const bool window = mask_of(record) == abi::MaskKind::kWindow && block_row.window_left >= 0;
#pragma unroll
  for (uint32_t g = 0; g < kGroups; ++g) {
    uint32_t least_high = run.end, most_low = run.begin;
#pragma unroll
    for (uint32_t i = g * kOfGroup; i < (g + 1) * kOfGroup; ++i) {
      uint32_t low = run.begin, high = run.begin;
      if (token[i] < record.item.row_count) {
        high = run.end;
        if (by_position) {
          int32_t own = position[i];
          asm volatile("" : "+r"(own));  // widened ahead, those of all rows would spill
          const long long last = static_cast<long long>(own) - block_row.position_base;
          high = abi::clamp_token(last + 1, run.begin, run.end);
          if (window) low = abi::clamp_token(last - block_row.window_left, run.begin, run.end);
        }
        least_high = min(least_high, high);
        most_low = max(most_low, low);
      }
      rows.low[i * 32 + lane] = low;
      rows.high[i * 32 + lane] = high;
    }
    least_high = __reduce_min_sync(~0u, least_high);
    most_low = __reduce_max_sync(~0u, most_low);
    if (lane != 0) continue;
    // In front of the last token that the least row sees, because its tile is worked on before.
    rows.plain_begin[g] = (most_low - base + kBlockTokens - 1) / kBlockTokens;
    rows.plain_end[g] = !listed && least_high > base ? (least_high - 1 - base) / kBlockTokens : 0;
  }
}

// The queries of all items that see anything.
__device__ __forceinline__ void load_queries(const abi::AttentionArgs& args, Memory& shared, uint32_t loader,
                                             uint32_t lane) {
  const auto* const header = reinterpret_cast<const abi::DevicePlanHeader*>(args.plan);
  const auto* const row_indices = section<uint32_t>(args, header->row_indices);
  const auto* const q_pos = section<int32_t>(args, header->q_pos);
  const auto* const q = static_cast<const uint8_t*>(args.q);
  const uint32_t group = header->counts.group;
  const uint32_t q_heads = header->counts.num_kv_heads * group;
  uint32_t token[kQueryRows];
#pragma unroll
  for (uint32_t i = 0; i < kQueryRows; ++i) {
    token[i] = (i * 32 + lane) / group;
  }
  uint32_t use = 0;
  for (uint32_t n = 0; next_record(shared, n); ++n) {
    const ItemRecord& record = shared.records[n % kRecords];
    const uint32_t row_count = record.item.row_count;
    if (Tiles::of(run_of(args, record)).count != 0) {
      asm volatile("" : "+r"(lane));  // what follows from it would be kept from item to item, and spill
      // 1. Rows are looked up while the slot is waited for.
      uint32_t q_row[kQueryRows];
      int32_t position[kQueryRows];
#pragma unroll
      for (uint32_t i = 0; i < kQueryRows; ++i) {
        asm volatile("" : "+r"(token[i]));  // as the lane
        const uint32_t at = record.item.row_begin + min(token[i], row_count - 1);
        q_row[i] = row_indices[at];
        position[i] = q_pos[at];
      }
      float scale = variant_params(args).sm_scale * (Variant::kHasLogit ? 1.0f : fovea::variant::kLog2e);
      if (kConverts && !kPoolScales && args.pool.k_scale != nullptr) {
        scale *= static_cast<const float*>(args.pool.k_scale)[record.head];
      }
      const uint32_t slot = use % kQuerySlots;
      wait_empty(shared.q_ring, use++);
      // 2. Their copies, and where their outputs go.
      TileRows& tile_rows = shared.rows[slot];
#pragma unroll
      for (uint32_t i = 0; i < kQueryRows; ++i) {
        if (i / 2 * kGroupRows >= row_count * group) break;  // one warpgroup alone has the item
        const uint32_t q_head = record.head * group + (i * 32 + lane - token[i] * group);
        const bool there = token[i] < row_count;
        const long long unit = (static_cast<long long>(q_row[i]) * args.q_row_stride + q_head * args.q_head_stride) / 8;
        const uint32_t own = there ? static_cast<uint32_t>(unit) : abi::kNone;
        const auto* const out = static_cast<const uint16_t*>(args.out) +
                                static_cast<long long>(q_row[i]) * args.out_row_stride +
                                static_cast<long long>(q_head) * args.out_head_stride;
        tile_rows.out[i * 32 + lane] = there ? reinterpret_cast<uint64_t>(out) : 0;
        tile_rows.row[i * 32 + lane] = q_row[i] * q_heads + q_head;
        copy_rows(ptx::smem_address(shared.q[slot]), i * 32, q, own, lane);
      }
      ptx::cp_async_commit();
      // 3. What they see.
      find_limits(args, record, token, position, tile_rows, lane);
      ptx::cp_async_wait<0>();
      if constexpr (kConverts) {
        __syncwarp();
        const uint32_t rows = row_count * group;
#pragma unroll 1
        for (uint32_t first = 0; first < kBlockRows && first / kGroupRows * kGroupRows < rows; first += 32) {
          halve_rows(shared.q[slot], shared.row_scales[slot], shared.row_sums[slot], first,
                     rows > first ? min(rows - first, 32u) : 0, scale, lane);
        }
      }
      ptx::fence_before_async_copies();
      ptx::mbarrier_arrive(ptx::smem_address(&shared.q_ring.full[slot]));
    }
    end_loads(shared, loader, n, lane);
  }
}

}  // namespace fovea::attention::prefill
