// What a warp knows of its 16 rows from slice to slice (online softmax in base 2). Used by slice.cuh and finish.cuh.
#pragma once

#include "kernels/attention/mask.cuh"
#include "kernels/attention/rotation.cuh"

namespace fovea::attention {

inline constexpr float kMinusInf = __builtin_bit_cast(float, 0xff800000u);

// State of the lane's rows r and r + 8 over the tokens so far. o: fragments of the second product, blocks of 16 dims as
// two n-tiles; see output_pair().
struct State {
  float o[kBlocks][2][4];
  float max[2];
  float sum[2];                   // of this lane's tokens only, until finish_sums()
  float zero[kIntegers ? 2 : 1];  // sums of weight * middle (kMiddle) of this lane's tokens, until finish_quantized()
  float weights[4];               // integers: sums of the weights that values were multiplied by; rows as in o
};

__device__ __forceinline__ void clear(State& state) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] = 0.0f;
  }
  state.max[0] = state.max[1] = kMinusInf;
  state.sum[0] = state.sum[1] = 0.0f;
  if constexpr (kIntegers) {
    state.zero[0] = state.zero[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) state.weights[i] = 0.0f;
  }
}

// The rows' maxima rise to those of the lanes' logits, most_of(h); sums and outputs follow. shift: what logits lose.
template <class F>
__device__ __forceinline__ void raise(State& state, const F& most_of, float (&shift)[2]) {
  float alpha[2];
  bool moved = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = most_of(h);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(most, state.max[h]);
    shift[h] = most == kMinusInf ? 0.0f : most;
    alpha[h] = ptx::exp2_approx(state.max[h] - shift[h]);
    moved |= most != state.max[h];
    state.max[h] = most;
  }
  if (__any_sync(~0u, moved)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] *= alpha[h];
      if constexpr (kIntegers) {
        state.zero[h] *= alpha[h];
        state.weights[2 * h] *= alpha[h];
        state.weights[2 * h + 1] *= alpha[h];
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          state.o[b][n][2 * h] *= alpha[h];
          state.o[b][n][2 * h + 1] *= alpha[h];
        }
      }
    }
  }
}

// Weights times scales are halves; times this they neither overflow for any scale nor become subnormal for usual ones.
inline constexpr float kWeightFactor = kInt4 ? 4.0f : 64.0f;

// Stored integers of values are counted from the middle of their range, half a unit below 0, and zeros follow: weights
// that meet zeros are not rounded, those of integers are, and what a token loses by that would have one sign in all
// dims otherwise, which taking a rotation back gathers in dim 0.
inline constexpr float kMiddle = -0.5f;
// What products make of stored integers: without their bias, and as codes_of_bytes() and codes_of_half_bytes() have
// them.
inline constexpr float kCodeBias = kMiddle + (kInt4 ? abi::kI4Bias : abi::kI8Bias);
inline constexpr float kEvenUnit = 1.0f / 16777216.0f;
inline constexpr float kOddUnit = kInt4 ? 16.0f * kEvenUnit : kEvenUnit;
inline constexpr uint32_t kTwoOnes = 0x3c003c00;  // halves

// Behind the last slice: takes factors out of the outputs, adds what biases and zeros of the values are, and rotates
// back.
__device__ __forceinline__ void finish_quantized(State& state, uint32_t lane) {
  if constexpr (kFp8 && kTokenScales) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] *= 1.0f / kWeightFactor;
    }
  }
  if constexpr (kIntegers) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero = state.zero[h];
      zero += __shfl_xor_sync(~0u, zero, 1);
      zero += __shfl_xor_sync(~0u, zero, 2);
      zero -= state.weights[2 * h] * (kCodeBias / kWeightFactor);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          constexpr float kUnits[2] = {1.0f / (kEvenUnit * kWeightFactor), 1.0f / (kOddUnit * kWeightFactor)};
          state.o[b][n][2 * h] = state.o[b][n][2 * h] * kUnits[n] + zero;
          state.o[b][n][2 * h + 1] = state.o[b][n][2 * h + 1] * kUnits[n] + zero;
        }
      }
      if constexpr (kRotated) {
        float row[kBlocks * 4];
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) row[i] = state.o[i / 4][i / 2 % 2][2 * h + i % 2];
        rotate<1, 2>(row, lane);
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) state.o[i / 4][i / 2 % 2][2 * h + i % 2] = row[i];
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

}  // namespace fovea::attention
