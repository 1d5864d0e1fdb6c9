// Rung 1: a thread a row. Keys and values come from global memory for every row, and FP32 units multiply: 2 x 128
// fused multiply-adds and as many conversions a (row, token) pair.
#pragma once

#include "kernels/ladder/problem.cuh"

extern "C" __global__ void __launch_bounds__(128) fovea_ladder_naive(fovea::abi::LadderArgs problem) {
  using namespace fovea;
  using namespace fovea::ladder;
  const Tile tile = Tile::of(problem, 128);
  const uint32_t row = tile.first_row + threadIdx.x;
  if (row >= problem.tokens) return;
  const uint32_t kv_heads = problem.heads / problem.group;
  const auto* const q = reinterpret_cast<const uint4*>(problem.q + row_at(problem, row, problem.heads, tile.head));
  uint32_t query[kHeadDim / 2];
#pragma unroll
  for (uint32_t i = 0; i < kHeadDim / 8; ++i) {
    const uint4 x = q[i];
    query[4 * i] = x.x, query[4 * i + 1] = x.y, query[4 * i + 2] = x.z, query[4 * i + 3] = x.w;
  }
  float o[kHeadDim];
#pragma unroll
  for (uint32_t i = 0; i < kHeadDim; ++i) o[i] = 0.0f;
  float max = kMinusInf, sum = 0.0f;
#pragma unroll 1
  for (uint32_t token = 0; token <= row; ++token) {
    const uint64_t at = row_at(problem, token, kv_heads, tile.kv_head);
    const auto* const key = reinterpret_cast<const uint4*>(problem.k + at);
    const auto* const value = reinterpret_cast<const uint4*>(problem.v + at);
    float logit = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kHeadDim / 8; ++i) {
      const uint4 x = key[i];
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        logit += ptx::unpack_low<true>(query[4 * i + j]) * ptx::unpack_low<true>(words[j]);
        logit += ptx::unpack_high<true>(query[4 * i + j]) * ptx::unpack_high<true>(words[j]);
      }
    }
    logit *= problem.scale;
    if (logit > max) {
      const float alpha = ptx::exp2_approx(max - logit);
#pragma unroll
      for (uint32_t i = 0; i < kHeadDim; ++i) o[i] *= alpha;
      sum *= alpha;
      max = logit;
    }
    const float weight = ptx::exp2_approx(logit - max);
    sum += weight;
#pragma unroll
    for (uint32_t i = 0; i < kHeadDim / 8; ++i) {
      const uint4 x = value[i];
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        o[8 * i + 2 * j] += weight * ptx::unpack_low<true>(words[j]);
        o[8 * i + 2 * j + 1] += weight * ptx::unpack_high<true>(words[j]);
      }
    }
  }
  auto* const out = reinterpret_cast<uint32_t*>(problem.out + row_at(problem, row, problem.heads, tile.head));
#pragma unroll
  for (uint32_t i = 0; i < kHeadDim / 2; ++i) out[i] = ptx::pack2<true>(o[2 * i] / sum, o[2 * i + 1] / sum);
}
