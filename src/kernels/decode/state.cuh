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
  float sum[2];  // of this lane's tokens only, until finish_sums()
};

__device__ __forceinline__ void clear(State& state) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] = 0.0f;
  }
  state.max[0] = state.max[1] = kMinusInf;
  state.sum[0] = state.sum[1] = 0.0f;
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
  if constexpr (kFp8) return {state.o[block][0][2 * h + pair], state.o[block][1][2 * h + pair]};
  return {state.o[block][pair][2 * h], state.o[block][pair][2 * h + 1]};
}

}  // namespace fovea::decode
