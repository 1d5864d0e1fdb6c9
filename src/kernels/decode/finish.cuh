// The end of an item: states of warps become rows of the output, or partial states in the workspace. Used by the
// consumers and the merge.
#pragma once

#include "kernels/decode/slice.cuh"

namespace fovea::decode {

// What a row's running output is divided by, and its base-2 log-sum-exp.
struct RowResult {
  float divisor;
  float lse;
};

// A row that saw nothing keeps output 0 and has log-sum-exp -inf. extra: base-2 logit without a value (a sink), or
// -inf.
__device__ __forceinline__ RowResult finish_row(float max, float sum, float extra) {
  if constexpr (!Variant::kSoftmax) return {1.0f, 0.0f};
  if (extra == kMinusInf) {
    if (max == kMinusInf) return {1.0f, kMinusInf};
    return {sum, max + log2f(sum)};
  }
  if (max == kMinusInf) return {1.0f, extra};
  const float most = fmaxf(max, extra);
  return {sum + exp2f(extra - max), most + log2f(sum * exp2f(max - most) + exp2f(extra - most))};
}

__device__ __forceinline__ float extra_logit(const abi::AttentionArgs& args, uint32_t q_head) {
  if constexpr (!Variant::kHasExtraLogit) return kMinusInf;
  return Variant::extra_logit(variant_params(args), static_cast<int>(q_head)) * fovea::variant::kLog2e;
}

// Two neighbouring columns of a row of the output, finished.
__device__ __forceinline__ void write_output(const abi::AttentionArgs& args, uint32_t q_row, uint32_t q_head,
                                             int32_t position, uint32_t column, float2 value) {
  if constexpr (Variant::kHasOutput) {
    const fovea::variant::RowPlace place{position, static_cast<int>(q_head), kHeadDim};
    value.x = Variant::output(variant_params(args), value.x, static_cast<int>(column), place);
    value.y = Variant::output(variant_params(args), value.y, static_cast<int>(column) + 1, place);
  }
  auto* to = static_cast<uint16_t*>(args.out) + static_cast<long long>(q_row) * args.out_row_stride +
             static_cast<long long>(q_head) * args.out_head_stride + column;
  *reinterpret_cast<uint32_t*>(to) = ptx::pack2<kQueryBf16>(value.x, value.y);
}

// Where one row of an item goes, and what its sums are multiplied by.
struct RowTarget {
  Row row;
  float factor;
  uint32_t partial;  // row of the workspace; direct items have none
  bool direct;

  // Of column 0.
  __device__ __forceinline__ uint64_t address(const abi::AttentionArgs& args) const {
    if (!direct) return reinterpret_cast<uint64_t>(args.partial_out + static_cast<uint64_t>(partial) * kHeadDim);
    return reinterpret_cast<uint64_t>(static_cast<uint16_t*>(args.out) +
                                      static_cast<long long>(row.q_row) * args.out_row_stride +
                                      static_cast<long long>(row.q_head) * args.out_head_stride);
  }
  __device__ __forceinline__ void write(const abi::AttentionArgs& args, uint32_t column, float2 value) const {
    value.x *= factor;
    value.y *= factor;
    if (direct) {
      write_output(args, row.q_row, row.q_head, row.position, column, value);
    } else {
      *reinterpret_cast<float2*>(args.partial_out + static_cast<uint64_t>(partial) * kHeadDim + column) = value;
    }
  }
};

// writes_lse: true for one thread of the row.
__device__ __forceinline__ RowTarget target_of(const abi::AttentionArgs& args, const Work& work, uint32_t tile_row,
                                               const Row& row, float max, float sum, bool writes_lse) {
  const abi::WorkItem& item = work.record->item;
  RowTarget target{};
  target.row = row;
  target.direct = (item.flags & abi::kItemDirect) != 0;
  const float extra = target.direct ? extra_logit(args, row.q_head) : kMinusInf;
  RowResult result = finish_row(max, sum, extra);
  if constexpr (kChecked) {
    if (work.record->bad_pages != 0) result.divisor = result.lse = __int_as_float(0x7fffffff);
  }
  target.factor = 1.0f / result.divisor;
  if constexpr (kFp8) {
    if (args.pool.v_scale != nullptr) target.factor *= static_cast<const float*>(args.pool.v_scale)[work.record->head];
  }
  if (target.direct) {
    if (writes_lse && args.lse != nullptr) {
      args.lse[static_cast<uint64_t>(row.q_row) * work.q_heads + row.q_head] = result.lse;
    }
  } else {
    target.partial = abi::partial_row(item, work.record->block_row, work.record->head, work.group) + tile_row;
    if (writes_lse) args.partial_lse[target.partial] = result.lse;
  }
  return target;
}

// One warp alone has seen all tokens of its 16 rows.
__device__ __forceinline__ void write_alone(const abi::AttentionArgs& args, const Work& work, const Row (&rows)[2],
                                            State& state, uint32_t lane) {
  finish_sums(state);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows[h].valid) continue;
    const uint32_t tile_row = work.first_row + lane / 4 + 8 * h;
    const RowTarget target = target_of(args, work, tile_row, rows[h], state.max[h], state.sum[h], (lane & 3) == 0);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        target.write(args, first_dim(b, lane) + pair * kSecondPair, output_pair(state, b, pair, h));
      }
    }
  }
}

// Rows 8h + 4i .. of every row block, i = 0, 1: states weighted by `weight` go through shared memory and are summed,
// two columns a thread, always in the order of the warps.
template <int h, class Barrier>
__device__ __forceinline__ void sum_rows(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                         const State& state, float weight, uint32_t row_blocks, uint32_t warp,
                                         uint32_t lane, const Barrier& barrier) {
  constexpr uint32_t kPairs = kHeadDim / 2;
  const uint32_t sharers = kConsumerWarps / row_blocks;
  for (uint32_t i = 0; i < 2 && 8 * h + kReduceRows * i < work.rows; ++i) {
    if (h + i != 0) barrier();  // the rows before have been read
    if (lane / 16 == i) {
      float* const to = shared.reduce[warp][lane / 4 % kReduceRows];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float2 o = output_pair(state, b, pair, h);
          *reinterpret_cast<float2*>(to + first_dim(b, lane) + pair * kSecondPair) = {o.x * weight, o.y * weight};
        }
      }
    }
    barrier();
    for (uint32_t n = warp * 32 + lane; n < row_blocks * kReduceRows * kPairs; n += kConsumerThreads) {
      const uint32_t column = n % kPairs * 2;
      const uint32_t in_pass = n / kPairs % kReduceRows;
      const uint32_t block = n / (kPairs * kReduceRows);
      const uint32_t tile_row = block * 16 + 8 * h + kReduceRows * i + in_pass;
      if (tile_row >= work.rows) continue;
      const auto part = [&](uint32_t s) {
        return *reinterpret_cast<const float2*>(&shared.reduce[s * row_blocks + block][in_pass][column]);
      };
      float2 value{0.0f, 0.0f};
      if (row_blocks == 1) {
        float2 parts[kConsumerWarps];
#pragma unroll
        for (uint32_t s = 0; s < kConsumerWarps; ++s) parts[s] = part(s);
#pragma unroll
        for (uint32_t s = 0; s < kConsumerWarps; ++s) value = {value.x + parts[s].x, value.y + parts[s].y};
      } else {
        for (uint32_t s = 0; s < sharers; ++s) value = {value.x + part(s).x, value.y + part(s).y};
      }
      if constexpr (Variant::kHasOutput) {
        const Row row = find_row(args, work, tile_row);
        if ((work.record->item.flags & abi::kItemDirect) != 0) {
          write_output(args, row.q_row, row.q_head, row.position, column, value);
          continue;
        }
      }
      const uint64_t to = shared.row_targets[tile_row];
      if ((work.record->item.flags & abi::kItemDirect) != 0) {
        reinterpret_cast<uint32_t*>(to)[column / 2] = ptx::pack2<kQueryBf16>(value.x, value.y);
      } else {
        reinterpret_cast<float2*>(to)[column / 2] = value;
      }
    }
  }
}

// The sum over the warps that shared a row block's tokens. row_blocks: 16-row blocks of the team, a power of two; warp
// w has block w % row_blocks.
template <class Barrier>
__device__ __forceinline__ void write_together(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                               const Row (&rows)[2], State& state, uint32_t row_blocks, uint32_t parity,
                                               uint32_t warp, uint32_t lane, const Barrier& barrier) {
  float2(&states)[kConsumerWarps][16] = shared.states[parity];
  finish_sums(state);
  if ((lane & 3) == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) states[warp][lane / 4 + 8 * h] = {state.max[h], state.sum[h]};
  }
  barrier();
  // Every warp works out its rows' totals, and by what its own part of them is to be multiplied.
  const uint32_t block = warp % row_blocks;
  const bool writes = warp < row_blocks && (lane & 3) == 0;  // log-sum-exp and address, once a row
  float weight[2] = {0.0f, 0.0f};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (block * 16 + 8 * h >= work.rows) continue;
    float2 parts[kConsumerWarps];
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) {
      parts[s] = states[s][lane / 4 + 8 * h];
      if (s % row_blocks != block) parts[s] = {kMinusInf, 0.0f};
    }
    float most = kMinusInf;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) most = fmaxf(most, parts[s].x);
    const float shift = most == kMinusInf ? 0.0f : most;
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) sum += parts[s].y * ptx::exp2_approx(parts[s].x - shift);
    if (!rows[h].valid) continue;
    const uint32_t tile_row = work.first_row + lane / 4 + 8 * h;
    const RowTarget target = target_of(args, work, tile_row, rows[h], most, sum, writes);
    weight[h] = target.factor;
    if constexpr (Variant::kSoftmax) weight[h] *= ptx::exp2_approx(state.max[h] - shift);
    if (writes) shared.row_targets[tile_row] = target.address(args);
  }
  sum_rows<0>(args, work, shared, state, weight[0], row_blocks, warp, lane, barrier);
  if (work.rows > 8) sum_rows<1>(args, work, shared, state, weight[1], row_blocks, warp, lane, barrier);
}

}  // namespace fovea::decode
