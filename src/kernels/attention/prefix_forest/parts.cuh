// The end of an item in plans that share prefixes: 16 rows of a warp become rows of the output, or parts of rows that
// other items have the rest of. Every (query token, query head) row has a counter: whoever writes its last part merges
// all of them in the plan's order, and who finds all others written keeps its own part in registers. Used by
// prefix_forest/units.cuh and the prefill kernel.
#pragma once

#include "kernels/attention/combine.cuh"

namespace fovea::attention::prefix_forest {

using attention::own_part;

// The merge of a lane's row. Parts 0 .. 3 of its list stand with the four lanes that share the row.
struct RowMerge {
  uint32_t index;
  uint32_t num_parts;
  uint32_t parts_begin;
  uint32_t part;  // first partial row of part lane % 4
};

__device__ __forceinline__ void find_merges(const Work& work, const Row (&rows)[2], RowMerge (&merges)[2]) {
  const bool direct = (work.record->item.flags & abi::kItemDirect) != 0;
  const uint32_t first = direct ? 0 : own_part(work) / work.group;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    merges[h] = {abi::kNone, 0, 0, 0};
    if (direct || !rows[h].valid) continue;
    merges[h].index = merge_of(*work.args, *work.header, rows[h].q_row, work.record->head, first + rows[h].token);
  }
}
__device__ __forceinline__ void find_entries(const Work& work, RowMerge (&merges)[2]) {
  const auto* entries = section<abi::DeviceMerge>(*work.args, work.header->merges);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (merges[h].index == abi::kNone) continue;
    const abi::DeviceMerge entry = entries[merges[h].index];
    merges[h].num_parts = entry.num_parts;
    merges[h].parts_begin = entry.parts_begin;
  }
}
__device__ __forceinline__ uint32_t find_part(const Work& work, const RowMerge& merge, uint32_t i) {
  const auto* parts = section<uint32_t>(*work.args, work.header->merge_parts);
  return i < merge.num_parts ? parts[merge.parts_begin + i] : 0;
}
__device__ __forceinline__ void find_parts(const Work& work, RowMerge (&merges)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) merges[h].part = find_part(work, merges[h], work.lane & 3);
}

__device__ __forceinline__ uint32_t read_counter(const uint32_t* counter) {
  uint32_t count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}
__device__ __forceinline__ uint32_t count_up(uint32_t* counter) {
  uint32_t count;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// Parts lie as the lanes hold them: block b of a row's 16 columns is 16 floats, four of each of its lanes.
__device__ __forceinline__ float4* part_at(const abi::AttentionArgs& args, uint32_t row, uint32_t lane) {
  return reinterpret_cast<float4*>(args.shared_out + static_cast<uint64_t>(row) * kHeadDim) + (lane & 3);
}
__device__ __forceinline__ float4 own_block(const State& state, int b, int h, float factor) {
  return {state.o[b][0][2 * h] * factor, state.o[b][0][2 * h + 1] * factor, state.o[b][1][2 * h] * factor,
          state.o[b][1][2 * h + 1] * factor};
}

// A finished row; four neighbours in 16 columns of each lane.
__device__ __forceinline__ void write_row(const abi::AttentionArgs& args, const Row& row,
                                          const float4 (&values)[kBlocks], float factor, uint32_t lane) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t column = first_dim(b, lane);
    const float4 v = values[b];
    write_output(args, row.q_row, row.q_head, row.position, column, {v.x * factor, v.y * factor});
    write_output(args, row.q_row, row.q_head, row.position, column + kSecondPair, {v.z * factor, v.w * factor});
  }
}

__device__ __forceinline__ void write_lse(const abi::AttentionArgs& args, const Work& work, const Row& row, float lse,
                                          uint32_t lane) {
  if (args.lse != nullptr && (lane & 3) == 0) lse_at(args, row.q_row, work.q_heads, row.q_head) = lse;
}

// Merges the lane's row r + 8h where `due`. kept: its own part is still in registers, weighted by 1 / divisor. By a
// whole warp.
template <int h>
__device__ __forceinline__ void merge_rows(const Work& work, const Row& row, const RowMerge& merge, const State& state,
                                           const RowResult& own, bool due, bool kept) {
  const abi::AttentionArgs& args = *work.args;
  const uint32_t lane = work.lane;
  const uint32_t quad = lane & ~3u;
  const uint32_t in_group = row.q_head - work.record->head * work.group;
  const uint32_t own_row = kept ? own_part(work) + row.token * work.group : abi::kNone;
  uint32_t most_parts = due ? merge.num_parts : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most_parts = max(most_parts, __shfl_xor_sync(~0u, most_parts, step));
  if (most_parts == 0) return;
  const auto part_of = [&](uint32_t first) {  // of part first + lane % 4
    return first == 0 ? merge.part : find_part(work, merge, first + (lane & 3));
  };
  const auto lse_of = [&](uint32_t first, uint32_t part) {
    if (!due || first + (lane & 3) >= merge.num_parts) return kMinusInf;
    return part == own_row ? own.lse : __ldcg(args.shared_lse + part + in_group);
  };
  const float first_lse = lse_of(0, merge.part);
  const float extra = due ? extra_logit(args, row.q_head) : kMinusInf;
  float most = fmaxf(extra, first_lse);
  for (uint32_t first = 4; first < most_parts; first += 4) most = fmaxf(most, lse_of(first, part_of(first)));
  most = row_max<State>(most);
  float sum = extra == kMinusInf ? 0.0f : exp2f(extra - most);
  const float own_factor = 1.0f / own.divisor;
  float4 value[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) value[b] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint32_t first = 0; first < most_parts; first += 4) {
    const uint32_t my_part = part_of(first);
    const float my_lse = first == 0 ? first_lse : lse_of(first, my_part);
    const float my_weight = part_weight(my_lse, most);
    for (uint32_t i = 0; i < 4 && first + i < most_parts; ++i) {
      const uint32_t part = __shfl_sync(~0u, my_part, quad + i);
      const float weight = __shfl_sync(~0u, my_weight, quad + i);
      float4 o[kBlocks];
      const float4* const from = part_at(args, part + in_group, lane);
      const bool from_memory = part != own_row && weight != 0.0f;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        o[b] = part == own_row ? own_block(state, b, h, own_factor) : float4{0.0f, 0.0f, 0.0f, 0.0f};
        if (from_memory) o[b] = __ldcg(from + 4 * b);
      }
      sum += weight;
      if (weight == 0.0f) continue;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) add(value[b], weight, o[b]);
    }
  }
  if (!due) return;
  write_row(args, row, value, merged_factor(sum), lane);
  write_lse(args, work, row, merged_lse(most, sum), lane);
}

// Ends a warp's 16 rows of an item: writes them, counts them, merges those that are due.
template <int h>
__device__ __forceinline__ void end_rows(const Work& work, const Row& row, const RowMerge& merge, const State& state) {
  const abi::AttentionArgs& args = *work.args;
  const uint32_t lane = work.lane;
  if (!__any_sync(~0u, row.valid)) return;
  const bool direct = (work.record->item.flags & abi::kItemDirect) != 0;
  const RowResult own =
      finish_row(work, state.max[h], state.sum[h], direct && row.valid ? extra_logit(args, row.q_head) : kMinusInf);
  if (direct) {
    if (!row.valid) return;
    float4 values[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) values[b] = own_block(state, b, h, 1.0f);
    write_row(args, row, values, 1.0f / own.divisor, lane);
    write_lse(args, work, row, own.lse, lane);
    return;
  }
  uint32_t* const counter =
      args.shared_counters + merge.index * work.group + (row.q_head - work.record->head * work.group);
  // The loads of other parts are ordered behind this one. One lane reads for the four of a row: others may be counted
  // between two reads.
  bool kept = row.valid && (lane & 3) == 0 && read_counter(counter) + 1 == merge.num_parts;
  kept = __shfl_sync(~0u, kept, lane & ~3u);
  bool due = kept;
  if (row.valid && !kept) {
    const uint32_t part = own_part(work) + row.token * work.group + (row.q_head - work.record->head * work.group);
    float4* const to = part_at(args, part, lane);
    const float factor = 1.0f / own.divisor;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) to[4 * b] = own_block(state, b, h, factor);
    if ((lane & 3) == 0) args.shared_lse[part] = own.lse;
  }
  __syncwarp();
  uint32_t last = 0;
  if (row.valid && !kept && (lane & 3) == 0) last = count_up(counter) + 1 == merge.num_parts;
  last = __shfl_sync(~0u, last, lane & ~3u);
  __syncwarp();
  due |= last != 0;
  if (due && (lane & 3) == 0) *counter = 0;
  if (!__any_sync(~0u, due)) return;
  merge_rows<h>(work, row, merge, state, own, due, kept);
}

}  // namespace fovea::attention::prefix_forest
