// The warps that bring tiles to shared memory: one for K, one for V, one for the queries. K and V come by the copy
// engine, or row by row where pages are small (FOVEA_LOADER, gather.cuh); queries row by row, because the rows of a
// tile are (query token, query head) pairs that lie anywhere. Used by kernel.cuh.
#pragma once

#if FOVEA_LOADER == 0
#include "kernels/attention/prefill/records.cuh"
#else
#include "kernels/attention/prefill/convert.cuh"
#endif

namespace fovea::attention::prefill {

// Copies 32 rows, row of lane i from `row` of lane i (null: none), to rows first .. of a tile.
__device__ __forceinline__ void copy_rows(uint32_t tile, uint32_t first, const uint8_t* row, uint32_t panel_bytes,
                                          uint32_t lane) {
#pragma unroll 4
  for (uint32_t i = 0; i < kRowChunks; ++i) {
    const uint32_t nth = i * 32 + lane;
    const uint32_t r = nth / kRowChunks;
    const uint32_t chunk = nth % kRowChunks;
    const auto from = __shfl_sync(~0u, reinterpret_cast<uint64_t>(row), r);
    if (from == 0) continue;
    ptx::cp_async_16(tile + tile_offset(first + r, chunk, panel_bytes),
                     reinterpret_cast<const uint8_t*>(from) + chunk * 16);
  }
}

// The same of queries that meet halves: rows of bf16 times a power of two, which brings them into their range. scales:
// of the tile's rows, what products are multiplied by for base-2 logits; the sign of `scale` goes to the queries.
__device__ __forceinline__ void halve_rows(uint8_t* tile, float* scales, uint32_t first, const uint8_t* row,
                                           float scale, uint32_t lane) {
#pragma unroll 2
  for (uint32_t i = 0; i < kRowChunks; ++i) {
    const uint32_t nth = i * 32 + lane;
    const uint32_t r = nth / kRowChunks;
    const uint32_t chunk = nth % kRowChunks;
    const auto from = __shfl_sync(~0u, reinterpret_cast<uint64_t>(row), r);
    const uint4 x = from != 0 ? *reinterpret_cast<const uint4*>(from + chunk * 16) : uint4{0, 0, 0, 0};
    uint32_t words[4] = {x.x, x.y, x.z, x.w};
    float most = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      most = fmaxf(most, fabsf(ptx::unpack_low<kQueryBf16>(words[w])));
      most = fmaxf(most, fabsf(ptx::unpack_high<kQueryBf16>(words[w])));
    }
#pragma unroll
    for (uint32_t step = 4; step < kRowChunks; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float factor = kScaleRows ? copysignf(range_factor(most), scale) : copysignf(1.0f, scale);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = ptx::pack2<false>(ptx::unpack_low<kQueryBf16>(words[w]) * factor,
                                   ptx::unpack_high<kQueryBf16>(words[w]) * factor);
    }
    *reinterpret_cast<uint4*>(tile + tile_offset(first + r, chunk, kQueryPanelBytes)) =
        uint4{words[0], words[1], words[2], words[3]};
    // A scale of 0 times a masked logit would be NaN.
    if (chunk == 0) scales[first + r] = fmaxf(scale / factor, 1e-30f);
  }
}

#if FOVEA_LOADER == 0

inline constexpr uint32_t kTileBoxes = kBlockTokens / kBoxTokens;
static_assert(kTileBoxes * kTilePanels <= 32, "a lane issues one box");

// K or V of all items. One lane a box, of kBoxTokens tokens in one panel.
__device__ __forceinline__ void load_tiles(const abi::AttentionArgs& args, const abi::TensorMap* map, Memory& shared,
                                           uint8_t (&slots)[kKvSlots][kBlockTokens * kRowBytes],
                                           TileBarriers<kKvSlots>& ring, uint32_t loader, uint32_t lane) {
  const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const uint32_t box = lane % kTileBoxes;
  const uint32_t panel = lane / kTileBoxes;
  uint32_t use = 0;
  for (uint32_t n = 0; next_record(shared, n); ++n) {
    const ItemRecord& record = shared.records[n % kRecords];
    const Run run = run_of(args, record);
    const Tiles tiles = Tiles::of(run);
    const int32_t* const list = args.page_entries + run.list_begin;
    const auto token_of = [&](uint32_t j) { return tiles.base + j * kBlockTokens + box * kBoxTokens; };
    const auto wanted = [&](uint32_t token) {
      return panel < kTilePanels && token < run.end && token + kBoxTokens > run.begin;
    };
    const auto entry_of = [&](uint32_t token) { return wanted(token) ? list[token / entry_tokens] : 0; };
    int32_t entry = tiles.count != 0 ? entry_of(token_of(tiles.count - 1)) : 0;
    for (uint32_t j = tiles.count; j-- > 0; ++use) {
      const uint32_t token = token_of(j);
      const bool mine = wanted(token);
      const Place place = place_of(args, entry, token % entry_tokens);
      if (j != 0) entry = entry_of(token_of(j - 1));  // on its way while the slot is waited for
      const RingSlot<kKvSlots> slot(use);
      const uint32_t full = ptx::smem_address(&ring.full[slot.index]);
      ptx::mbarrier_wait(ptx::smem_address(&ring.empty[slot.index]), slot.parity ^ 1);
      const uint32_t boxes = __popc(__ballot_sync(~0u, mine));
      if (lane == 0) ptx::mbarrier_arrive_expect(full, boxes * (kBoxTokens * 128));
      __syncwarp();
      if (mine) {
        const uint32_t to = ptx::smem_address(slots[slot.index]) + panel * kKvPanelBytes + box * (kBoxTokens * 128);
        ptx::copy_shared_box(to, map, full, place.token, static_cast<int32_t>(panel), static_cast<int32_t>(run.head),
                             place.page);
      }
    }
    end_loads(shared, loader, n, lane);
  }
}

#endif

// The queries of all items that see anything.
__device__ __forceinline__ void load_queries(const abi::AttentionArgs& args, Memory& shared, uint32_t loader,
                                             uint32_t lane) {
  const auto* const header = reinterpret_cast<const abi::DevicePlanHeader*>(args.plan);
  const auto* const row_indices = reinterpret_cast<const uint32_t*>(args.plan + header->row_indices);
  const uint32_t group = header->counts.group;
  uint32_t use = 0;
  for (uint32_t n = 0; next_record(shared, n); ++n) {
    const ItemRecord& record = shared.records[n % kRecords];
    const uint32_t rows = record.item.row_count * group;
    if (Tiles::of(run_of(args, record)).count != 0) {
      const RingSlot<kQuerySlots> slot(use++);
      ptx::mbarrier_wait(ptx::smem_address(&shared.q_ring.empty[slot.index]), slot.parity ^ 1);
      float scale = variant_params(args).sm_scale * fovea::variant::kLog2e;
      if (kConverts && args.pool.k_scale != nullptr) {
        scale *= static_cast<const float*>(args.pool.k_scale)[record.head];
      }
      // All rows are looked up before the first is copied.
      const uint8_t* from[kBlockRows / 32];
#pragma unroll
      for (uint32_t i = 0; i < kBlockRows / 32; ++i) {
        const uint32_t row = i * 32 + lane;
        from[i] = nullptr;
        if (row >= rows) continue;
        const uint32_t token = row / group;
        const uint64_t q_row = row_indices[record.item.row_begin + token];
        const uint32_t q_head = record.head * group + (row - token * group);
        from[i] = static_cast<const uint8_t*>(args.q) +
                  (static_cast<long long>(q_row) * args.q_row_stride + q_head * args.q_head_stride) * 2;
      }
#pragma unroll
      for (uint32_t i = 0; i < kBlockRows / 32; ++i) {
        if (i * 32 >= rows) break;
        if constexpr (kConverts) {
          halve_rows(shared.q[slot.index], shared.row_scales[slot.index], i * 32, from[i], scale, lane);
        } else {
          copy_rows(ptx::smem_address(shared.q[slot.index]), i * 32, from[i], kQueryPanelBytes, lane);
        }
      }
      ptx::commit_copies();
      ptx::wait_for_copies<0>();
      ptx::fence_before_async_copies();
      ptx::mbarrier_arrive(ptx::smem_address(&shared.q_ring.full[slot.index]));
    }
    end_loads(shared, loader, n, lane);
  }
}

}  // namespace fovea::attention::prefill
