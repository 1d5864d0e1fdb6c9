// The end of an item: 64 rows of a warpgroup become rows of the output, through the shared memory that their queries no
// longer need, so that stores are whole lines; or parts, which are merged (merge.cuh).
// Used by kernel.cuh.
#pragma once

#include "kernels/attention/prefill/merge.cuh"
#include "kernels/attention/prefill/stored.cuh"

namespace fovea::attention::prefill {

// What outputs of products are multiplied by.
__device__ __forceinline__ void apply_scale(const abi::AttentionArgs& args, uint32_t kv_head, float& factor) {
  factor *= kValueFactor;
  if constexpr (kConverts && !kPoolScales) {
    if (args.pool.v_scale != nullptr) factor *= static_cast<const float*>(args.pool.v_scale)[kv_head];
  }
}

// Outputs over rotated values, as without the rotation.
__device__ __forceinline__ void rotate_back(State& state, uint32_t lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float row[State::kPerRow];
#pragma unroll
    for (int i = 0; i < State::kPerRow; ++i) row[i] = state.at(h, i);
    rotate_if<State::kFirstLane, kPoolRotated ? State::kLastLane : 0>(row, lane);
#pragma unroll
    for (int i = 0; i < State::kPerRow; ++i) state.at(h, i) = row[i];
  }
}

// Finished rows of a warp, through the shared memory of their queries.
__device__ __forceinline__ void write_rows(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                           const Item& item, const State& state) {
  const TileRows& tile_rows = rows_here(shared, group);
  const uint32_t region = ptx::smem_address(shared.q[group.q_use % kQuerySlots]);
  uint32_t lane = group.lane;
  uint32_t first_row = group.first_row();
  asm volatile(""
               : "+r"(lane), "+r"(first_row));  // offsets are worked out here: kept from item to item, they would spill
  float factor[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t row = first_row + lane / 4 + 8 * h;
    float extra = kMinusInf;
    if constexpr (Variant::kHasExtraLogit) {
      const uint32_t heads = header_here(args)->counts.group;
      extra = extra_logit(args, record_of(shared, item).head * heads + row % heads);
    }
    const RowResult result = finish_row(state.max[h], state.sum[h], extra);
    factor[h] = 1.0f / result.divisor;
    if (args.lse != nullptr && (lane & 3) == 0 && tile_rows.out[row] != 0) args.lse[tile_rows.row[row]] = result.lse;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) apply_scale(args, record_of(shared, item).head, factor[h]);
  // Row and matrix whose address this lane gives: those of the other blocks differ in bits of the chunk.
  const uint32_t own = region + tile_offset(first_row + (lane & 15), lane >> 4, kQueryPanelBytes);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    uint32_t block[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& o = state.o[b][i / 2];
      const int h = i % 2;
      block[i] = ptx::pack2<kQueryBf16>(o[2 * h] * factor[h], o[2 * h + 1] * factor[h]);
    }
    ptx::stmatrix_x4((own ^ (b % 4 * 32)) + b / 4 * kQueryPanelBytes, block);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRowChunks / 2; ++i) {
    const uint32_t nth = i * 32 + lane;
    const uint32_t row = nth / kRowChunks;
    const uint32_t chunk = nth % kRowChunks;
    const uint64_t at = tile_rows.out[first_row + row];
    uint32_t words[4];
    ptx::load_shared_16(words, region + tile_offset(first_row + row, chunk, kQueryPanelBytes));
    if (at == 0) continue;
    *reinterpret_cast<uint4*>(at + chunk * 16) = uint4{words[0], words[1], words[2], words[3]};
  }
}

// Parts of rows go to the workspace, where they are merged. Registers are few here, so that its own part is read back
// too.
__device__ __forceinline__ void end_parts(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                          const Item& item, const State& state) {
  const Rows rows = rows_of(args, shared, group, item);
  const Work work = work_of(args, shared, group, item);
  uint32_t lane = group.lane;
  asm volatile("" : "+r"(lane));  // see write_rows()
  const uint32_t first = prefix_forest::own_part(work) + work.first_row + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Row& row = rows.row[h];
    if (!row.valid) continue;
    const RowResult own = finish_row(state.max[h], state.sum[h], kMinusInf);
    const uint32_t part = first + 8 * h;
    float4* const to = prefix_forest::part_at(args, part, lane);
    float factor = 1.0f / own.divisor;
    apply_scale(args, work.record->head, factor);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) to[4 * b] = prefix_forest::own_block(state, b, h, factor);
    if ((lane & 3) == 0) args.shared_lse[part] = own.lse;
  }
  __syncwarp();
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Row row = h == 0 ? rows.row[0] : rows.row[1];
    if (!__any_sync(~0u, row.valid)) continue;
    merge_part(args, work, row, find_parts(args, work, row, first + 8 * h), lane);
  }
}

// The rows of an item without tokens.
__device__ __forceinline__ void end_nothing(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                            const Item& item) {
  if (!is_direct(shared, item)) {
    State state;
    clear(state);
    end_parts(args, shared, group, item, state);
    return;
  }
  const Work work = work_of(args, shared, group, item);
  const Rows rows = rows_of(args, shared, group, item);
  float4 zeros[kBlocks] = {};
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Row row = h == 0 ? rows.row[0] : rows.row[1];
    if (!row.valid) continue;
    prefix_forest::write_row(args, row, zeros, 1.0f, group.lane);
    const RowResult none = finish_row(kMinusInf, 0.0f, extra_logit(args, row.q_head));
    prefix_forest::write_lse(args, work, row, none.lse, group.lane);
  }
}

}  // namespace fovea::attention::prefill
