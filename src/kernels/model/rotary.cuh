// Cosines and sines of rotary angles, to about 1e-7 for angles up to millions of radians, without branches: the
// library's functions take a slow path there, with an array in local memory. Used by cache/append.cuh and
// rope_append.cuh.
#pragma once

#include "kernels/ptx/instructions.cuh"

namespace fovea::kernels {

struct CosSin {
  float cosine;
  float sine;
};

// Of position * inv_freq, rounded to fp32 as in training.
__forceinline__ CosSin rotary_cos_sin(float position, float inv_freq) {
  constexpr float kTurns = 0.15915494f;        // 1 / (2 pi), and what is missing of it:
  constexpr float kTurnsRest = 6.4206383e-9f;  // both together hold 48 bits
  const float angle = product(position, inv_freq);
  const float turns = product(angle, kTurns);
  const float rest = fma_of(angle, kTurnsRest, fma_of(angle, kTurns, -turns));
  // The nearest quarter turn, and what is left: at most an eighth, rounded once.
  const float part = turns - nearest_integer(turns);
  const float quarters = nearest_integer(4.0f * (part + rest));
  const float left = fma_of(quarters, -0.25f, part) + rest;
  // sin(2 pi left) and cos(2 pi left): polynomials through the Chebyshev nodes of left^2 in [0, 1/64].
  const float square = left * left;
  float sine = fma_of(square, -75.40184f, 81.592545f);
  sine = fma_of(square, sine, -41.341663f);
  sine = left * fma_of(square, sine, 6.2831855f);
  float cosine = fma_of(square, 59.220287f, -85.44285f);
  cosine = fma_of(square, cosine, 64.939316f);
  cosine = fma_of(square, cosine, -19.739208f);
  cosine = fma_of(square, cosine, 1.0f);
  const uint32_t quarter = static_cast<uint32_t>(static_cast<int32_t>(quarters)) % 4;
  const float x = quarter % 2 == 0 ? cosine : sine;
  const float y = quarter % 2 == 0 ? sine : cosine;
  return {quarter == 1 || quarter == 2 ? -x : x, quarter >= 2 ? -y : y};
}

}  // namespace fovea::kernels
