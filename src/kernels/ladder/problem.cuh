// What the kernels of the ladder share (abi/ladder_args.h says what they compute): tiles, the softmax of fragments, the
// epilogue. docs/kernels/prefill.md climbs from the first kernel to the one that serves; none of these does.
#pragma once

#include "abi/ladder_args.h"
#include "kernels/ptx/mma.cuh"

namespace fovea::ladder {

using Problem = abi::LadderArgs;
inline constexpr uint32_t kHeadDim = abi::kLadderHeadDim;
inline constexpr float kMinusInf = __builtin_bit_cast(float, 0xff800000u);

// What a CTA works on: all heads of the last tile first, because it is the longest.
struct Tile {
  uint32_t head, kv_head, first_row;

  __device__ __forceinline__ static Tile of(const Problem& problem, uint32_t rows) {
    const uint32_t head = blockIdx.x % problem.heads, later = blockIdx.x / problem.heads;
    return {head, head / problem.group, (gridDim.x / problem.heads - 1 - later) * rows};
  }
  // KV tiles of `size` tokens that rows before `end` see.
  __device__ __forceinline__ static uint32_t count(const Problem& problem, uint32_t end, uint32_t size) {
    return ((end < problem.tokens ? end : problem.tokens) + size - 1) / size;
  }
};

// Row `token` of a tensor of `heads` heads; that of the last token for those behind it, which nobody sees.
__device__ __forceinline__ uint64_t row_at(const Problem& problem, uint32_t token, uint32_t heads, uint32_t head) {
  const uint32_t row = token < problem.tokens ? token : problem.tokens - 1;
  return (static_cast<uint64_t>(row) * heads + head) * kHeadDim;
}

// The running softmax of a thread's two rows in a fragment of sums (ptx/mma.cuh): r and r + 8.
struct Softmax {
  float max[2] = {kMinusInf, kMinusInf};
  float sum[2] = {0.0f, 0.0f};

  // Logits of two rows become weights; alpha: what outputs so far are to be multiplied by.
  template <int kCount>
  __device__ __forceinline__ void step(float (&s)[kCount], float scale, float (&alpha)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = max[h];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) most = fmaxf(most, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      alpha[h] = ptx::exp2_approx((max[h] - most) * scale);
      max[h] = most;
      sum[h] *= alpha[h];
#pragma unroll
      for (int i = 2 * h; i < kCount; i += i % 2 == 0 ? 1 : 3) {
        s[i] = ptx::exp2_approx(s[i] * scale - most * scale);
        sum[h] += s[i];
      }
    }
  }
  // Of all lanes that share a row.
  __device__ __forceinline__ float total(int h) const {
    float all = sum[h] + __shfl_xor_sync(~0u, sum[h], 1);
    return all + __shfl_xor_sync(~0u, all, 2);
  }
};

// Logits behind the diagonal: `row` is the thread's first row, `token` the first of the tile.
template <int kCount>
__device__ __forceinline__ void mask_causal(float (&s)[kCount], uint32_t row, uint32_t token, uint32_t lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (token + i / 4 * 8 + lane % 4 * 2 + i % 2 > row + i / 2 % 2 * 8) s[i] = kMinusInf;
  }
}

template <int kCount>
__device__ __forceinline__ void multiply_rows(float (&o)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= factor[i / 2 % 2];
}

// Weights of 16 tokens as the A fragment of a product.
template <int kCount>
__device__ __forceinline__ void pack_step(const float (&s)[kCount], int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ptx::pack2<true>(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
}

// Outputs over their sums, to global memory, straight from the fragment.
__device__ __forceinline__ void store_rows(const Problem& problem, const Tile& tile, uint32_t row, uint32_t lane,
                                           const Softmax& softmax, const float (&o)[64]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = 1.0f / softmax.total(h);
    const uint32_t token = row + h * 8;
    if (token >= problem.tokens) continue;
    auto* const out = reinterpret_cast<uint32_t*>(problem.out + row_at(problem, token, problem.heads, tile.head));
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i * 4 + lane % 4] = ptx::pack2<true>(o[i * 4 + h * 2] * factor, o[i * 4 + h * 2 + 1] * factor);
    }
  }
}

}  // namespace fovea::ladder
