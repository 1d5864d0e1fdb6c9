// What a warp knows of its 16 rows from slice to slice (online softmax in base 2). Used by all that keep or merge it.
#pragma once

#include "kernels/attention/mask.cuh"
#include "kernels/attention/rotation.cuh"

namespace fovea::attention {

inline constexpr float kMinusInf = __builtin_bit_cast(float, 0xff800000u);

// P times scales are halves; times this they neither overflow for any scale nor become subnormal for usual ones.
inline constexpr float kPFactor = kInt4 ? 4.0f : 64.0f;

// Stored integers of values are counted from the middle of their range, half a unit below 0, and zeros follow: P
// that meets zeros is not rounded, that of integers is, and what a token loses by that would have one sign in all
// dims otherwise, which taking a rotation back gathers in dim 0.
inline constexpr float kMiddle = -0.5f;
// What products make of stored integers: without their bias, and as codes_of_bytes() and codes_of_half_bytes() have
// them.
inline constexpr float kCodeBias = kMiddle + (kInt4 ? abi::kI4Bias : abi::kI8Bias);
inline constexpr float kEvenUnit = 1.0f / 16777216.0f;
inline constexpr float kOddUnit = kInt4 ? 16.0f * kEvenUnit : kEvenUnit;
inline constexpr uint32_t kTwoOnes = 0x3c003c00;  // halves

// State of the lane's rows r and r + 8 over the tokens so far. o: fragments of the second product, blocks of 16 dims as
// two n-tiles; see output_pair().
struct State {
  float o[kBlocks][2][4];
  float max[2];
  float sum[2];                   // of this lane's tokens only, until finish_sums()
  float zero[kIntegers ? 2 : 1];  // sums of P * middle (kMiddle) of this lane's tokens, until finish_integers()
  float p_sums[4];                // integers: sums of P that values were multiplied by; rows as in o

  static constexpr uint32_t kFirstLane = 1, kLastLane = 2;  // bits of a lane's number in which those of a row differ
  static constexpr float kZeroFactor = 1.0f;                // what zero[] is to be divided by
  static constexpr int kPerRow = kBlocks * 4;
  // Element i of row h, which i & kOddBit says to be an odd dim; its P.
  static constexpr int kOddBit = 2;
  __device__ __forceinline__ float& at(int h, int i) { return o[i / 4][i / 2 % 2][2 * h + i % 2]; }
  __device__ __forceinline__ float& p_sum(int h, int i) { return p_sums[2 * h + i]; }
};

// The functions below take this kernel's states and those of kernels/attention/warp_per_worker.
template <class S>
__device__ __forceinline__ void clear(S& state) {
  state = S{};
  state.max[0] = state.max[1] = kMinusInf;
}

// Row h times alpha.
template <class S>
__device__ __forceinline__ void rescale(S& state, int h, float alpha) {
  state.sum[h] *= alpha;
  if constexpr (kIntegers) {
    state.zero[h] *= alpha;
    state.p_sum(h, 0) *= alpha;
    state.p_sum(h, 1) *= alpha;
  }
#pragma unroll
  for (int i = 0; i < S::kPerRow; ++i) state.at(h, i) *= alpha;
}

// x over the lanes that have the rows of x's.
template <class S, class F>
__device__ __forceinline__ float reduce_row(float x, const F& f) {
#pragma unroll
  for (uint32_t step = S::kFirstLane; step <= S::kLastLane; step *= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
template <class S>
__device__ __forceinline__ float row_max(float x) {
  return reduce_row<S>(x, [](float a, float b) { return fmaxf(a, b); });
}
template <class S>
__device__ __forceinline__ float row_sum(float x) {
  return reduce_row<S>(x, [](float a, float b) { return a + b; });
}

template <class F>
__device__ __forceinline__ float reduce_warp(float x, const F& f) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  return reduce_warp(x, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float warp_sum(float x) {
  return reduce_warp(x, [](float a, float b) { return a + b; });
}

// The rows' maxima rise to those of the lanes' logits, most_of(h); sums and outputs follow. shift: what logits lose.
template <class F>
__device__ __forceinline__ void raise(State& state, const F& most_of, float (&shift)[2]) {
  float alpha[2];
  bool moved = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float most = fmaxf(row_max<State>(most_of(h)), state.max[h]);
    shift[h] = most == kMinusInf ? 0.0f : most;
    alpha[h] = ptx::exp2_approx(state.max[h] - shift[h]);
    moved |= most != state.max[h];
    state.max[h] = most;
  }
  if (__any_sync(~0u, moved)) {
    rescale(state, 0, alpha[0]);
    rescale(state, 1, alpha[1]);
  }
}

template <class S>
__device__ __forceinline__ void finish_sums(S& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) state.sum[h] = row_sum<S>(state.sum[h]);
}

// Behind the last slice: takes factors out of outputs over integers, adds what their biases and zeros are, and rotates
// back.
template <class S>
__device__ __forceinline__ void finish_integers(S& state, uint32_t lane) {
  if constexpr (kIntegers) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float zero =
          row_sum<S>(state.zero[h]) * (1.0f / S::kZeroFactor) - state.p_sum(h, 0) * (kCodeBias / kPFactor);
      float row[S::kPerRow];
#pragma unroll
      for (int i = 0; i < S::kPerRow; ++i) {
        row[i] = state.at(h, i) * (1.0f / ((i & S::kOddBit ? kOddUnit : kEvenUnit) * kPFactor)) + zero;
      }
      if constexpr (kRotated) rotate<S::kFirstLane, S::kLastLane>(row, lane);
#pragma unroll
      for (int i = 0; i < S::kPerRow; ++i) state.at(h, i) = row[i];
    }
  }
}

// Two neighbouring columns of row r + 8h: pair 0 starts at column first_dim(block, lane), pair 1 kSecondPair behind.
__device__ __forceinline__ float2 output_pair(const State& state, int block, int pair, int h) {
  if constexpr (kNarrow) return {state.o[block][0][2 * h + pair], state.o[block][1][2 * h + pair]};
  return {state.o[block][pair][2 * h], state.o[block][pair][2 * h + 1]};
}

}  // namespace fovea::attention
