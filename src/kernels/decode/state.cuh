// What a warp knows of its 16 rows from slice to slice (online softmax in base 2). Used by slice.cuh and finish.cuh.
#pragma once

#include "kernels/decode/mask.cuh"

namespace fovea::decode {

inline constexpr float kMinusInf = __builtin_bit_cast(float, 0xff800000u);

// State of the lane's rows r and r + 8 over the tokens so far. o: fragments of the second product, blocks of 16 dims as
// two n-tiles; see output_pair().
struct State {
  float o[kBlocks][2][4];
  float max[2];
  float sum[2];                      // of this lane's tokens only, until finish_sums()
  float zero[kTokenScales ? 2 : 1];  // sums of weight * zero of this lane's tokens, until add_zeros()
};

__device__ __forceinline__ void clear(State& state) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] = 0.0f;
  }
  state.max[0] = state.max[1] = kMinusInf;
  state.sum[0] = state.sum[1] = 0.0f;
  if constexpr (kTokenScales) state.zero[0] = state.zero[1] = 0.0f;
}

// Weights times scales are halves; times this they neither overflow for any scale nor become subnormal for usual ones.
inline constexpr float kWeightFactor = kInt8 ? 64.0f : 4.0f;

// Behind the last slice of integers: takes the factor out of the outputs and adds what the zeros of the values are.
__device__ __forceinline__ void add_zeros(State& state) {
  if constexpr (kTokenScales) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero = state.zero[h];
      zero += __shfl_xor_sync(~0u, zero, 1);
      zero += __shfl_xor_sync(~0u, zero, 2);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          state.o[b][n][2 * h] = state.o[b][n][2 * h] * (1.0f / kWeightFactor) + zero;
          state.o[b][n][2 * h + 1] = state.o[b][n][2 * h + 1] * (1.0f / kWeightFactor) + zero;
        }
      }
    }
  }
}

__device__ __forceinline__ void finish_sums(State& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
    state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
  }
}

// Two neighbouring columns of row r + 8h: pair 0 starts at column first_dim(block, lane), pair 1 kSecondPair behind.
__device__ __forceinline__ float2 output_pair(const State& state, int block, int pair, int h) {
  if constexpr (kNarrow) return {state.o[block][0][2 * h + pair], state.o[block][1][2 * h + pair]};
  return {state.o[block][pair][2 * h], state.o[block][pair][2 * h + 1]};
}

}  // namespace fovea::decode
