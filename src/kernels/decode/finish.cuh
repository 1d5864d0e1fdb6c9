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

// The sum over the warps that shared a row block's tokens, a few rows at a time through shared memory, always in the
// order of the warps. row_blocks: 16-row blocks of the team, a power of two; warp w has block w % row_blocks.
template <class Barrier>
__device__ __forceinline__ void write_together(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                               State& state, uint32_t row_blocks, uint32_t parity, uint32_t warp,
                                               uint32_t lane, const Barrier& barrier) {
  const uint32_t sharers = kConsumerWarps / row_blocks;
  float2(&states)[kConsumerWarps][16] = shared.states[parity];
  finish_sums(state);
  if ((lane & 3) == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) states[warp][lane / 4 + 8 * h] = {state.max[h], state.sum[h]};
  }
  barrier();
  float scale[2] = {1.0f, 1.0f};
  if constexpr (Variant::kSoftmax) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = kMinusInf;
      for (uint32_t i = 0; i < sharers; ++i) {
        most = fmaxf(most, states[i * row_blocks + warp % row_blocks][lane / 4 + 8 * h].x);
      }
      scale[h] = state.max[h] == kMinusInf ? 0.0f : ptx::exp2_approx(state.max[h] - most);
    }
  }
  const uint32_t block_rows = work.rows < 16 ? work.rows : 16;
  for (uint32_t pass = 0; pass * kReduceRows < block_rows; ++pass) {
    if (pass != 0) barrier();  // the pass before has been read
    const uint32_t h = pass / 2;
    if (lane / 4 / kReduceRows == pass % 2) {
      float* to = shared.reduce[warp][lane / 4 % kReduceRows];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float2 low = output_pair(state, b, pair, 0);
          const float2 high = output_pair(state, b, pair, 1);
          const float2 value =
              h == 0 ? float2{low.x * scale[0], low.y * scale[0]} : float2{high.x * scale[1], high.y * scale[1]};
          *reinterpret_cast<float2*>(to + first_dim(b, lane) + pair * kSecondPair) = value;
        }
      }
    }
    barrier();
    constexpr uint32_t kPairs = kHeadDim / 2;
    for (uint32_t i = warp * 32 + lane; i < row_blocks * kReduceRows * kPairs; i += kConsumerThreads) {
      const uint32_t pair = i % kPairs;
      const uint32_t in_pass = i / kPairs % kReduceRows;
      const uint32_t block = i / (kPairs * kReduceRows);
      const uint32_t in_block = pass * kReduceRows + in_pass;
      const Row row = find_row(args, work, block * 16 + in_block);
      if (!row.valid) continue;
      float most = kMinusInf;
      float sum = 0.0f;
      float2 value{0.0f, 0.0f};
      for (uint32_t s = 0; s < sharers; ++s) most = fmaxf(most, states[s * row_blocks + block][in_block].x);
      for (uint32_t s = 0; s < sharers; ++s) {
        const uint32_t from = s * row_blocks + block;
        const float2 part = states[from][in_block];
        if (part.x != kMinusInf) sum += part.y * ptx::exp2_approx(part.x - most);
        const float2 o = *reinterpret_cast<const float2*>(&shared.reduce[from][in_pass][2 * pair]);
        value.x += o.x;
        value.y += o.y;
      }
      const RowTarget target = target_of(args, work, block * 16 + in_block, row, most, sum, pair == 0);
      target.write(args, 2 * pair, value);
    }
  }
}

}  // namespace fovea::decode
