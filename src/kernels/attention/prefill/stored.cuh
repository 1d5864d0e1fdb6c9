// Elements of pools that are converted, as halves, and their rotation. Used by convert.cuh, queries.cuh, finish.cuh
// and, where logits are computed again, by kernel.cuh.
#pragma once

#include "kernels/attention/prefill/config.cuh"
#include "kernels/attention/rotation.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::attention::prefill {

// Four stored numbers of a byte each. Exact.
__device__ __forceinline__ void halves_of_bytes(uint32_t x, uint32_t& low, uint32_t& high) {
  if constexpr (kPoolZeros) {
    // Under the exponent of 1024 a byte u is the half 1024 + u.
    constexpr uint32_t kLessBias = 0xe480e480;  // -1024 - kI8Bias, twice
    static_assert(abi::kI8Bias == 128);
    low = ptx::add_halves(__byte_perm(x, 0x64646464, 0x4140), kLessBias);
    high = ptx::add_halves(__byte_perm(x, 0x64646464, 0x4342), kLessBias);
  } else {
    ptx::halves_of_e4m3(x, low, high);
  }
}

// Eight of half a byte each. Exact.
__device__ __forceinline__ void halves_of_half_bytes(uint32_t x, uint32_t (&to)[4]) {
  constexpr uint32_t kLessBias = 0xe408e408, kLessBiasOdd = 0xd480d480;  // -1024 - kI4Bias, -64 - kI4Bias, twice
  static_assert(abi::kI4Bias == 8);
  constexpr uint32_t kSixteenth = 0x2c002c00, kExponent = 0x64006400;
  uint32_t pairs[4];  // elements i and i + 4
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t bits = i == 0 ? x : x >> 8;
    pairs[i] = ptx::add_halves((bits & 0x000f000fu) | kExponent, kLessBias);
    pairs[i + 1] = ptx::multiply_add_halves((bits & 0x00f000f0u) | kExponent, kSixteenth, kLessBiasOdd);
  }
  to[0] = __byte_perm(pairs[0], pairs[1], 0x5410);
  to[1] = __byte_perm(pairs[2], pairs[3], 0x5410);
  to[2] = __byte_perm(pairs[0], pairs[1], 0x7632);
  to[3] = __byte_perm(pairs[2], pairs[3], 0x7632);
}

// The part-th chunk of halves that 16 bytes become.
__device__ __forceinline__ void halves_of_part(const uint32_t (&words)[4], uint32_t part, uint32_t (&to)[4]) {
  if constexpr (kPoolBits == 4) {
    halves_of_half_bytes(words[part], to);
  } else {
    halves_of_bytes(words[2 * part], to[0], to[1]);
    halves_of_bytes(words[2 * part + 1], to[2], to[3]);
  }
}

// Stored numbers d, d + 1, d + 8 and d + 9 of a row, d even.
__device__ __forceinline__ void stored_pairs(const uint8_t* row, uint32_t d, uint32_t& first, uint32_t& second) {
  if constexpr (kPoolBits == 4) {
    uint32_t to[4];
    halves_of_half_bytes(row[d / 2] | static_cast<uint32_t>(row[d / 2 + 4]) << 8, to);
    first = to[0];
    second = to[1];
  } else {
    const auto* const pairs = reinterpret_cast<const uint16_t*>(row + d);
    halves_of_bytes(pairs[0] | static_cast<uint32_t>(pairs[4]) << 16, first, second);
  }
}

// scale * stored + zero of values, over kValueFactor. scale: an abi::KvScale.
__device__ __forceinline__ void scale_values(uint32_t scale, uint32_t (&halves)[4]) {
  if constexpr (kPoolScales) {
    scale = ptx::multiply_halves(scale, 0x38003800);  // twice 1 / kValueFactor
    const uint32_t by = __byte_perm(scale, 0, 0x1010), zero = __byte_perm(scale, 0, 0x3232);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      halves[i] = kPoolZeros ? ptx::multiply_add_halves(halves[i], by, zero) : ptx::multiply_halves(halves[i], by);
    }
  }
}

// The rotation of pools that are rotated; nothing where kLastLane is 0.
template <uint32_t kFirstLane, uint32_t kLastLane, int kCount>
__device__ __forceinline__ void rotate_if(float (&x)[kCount], uint32_t lane) {
  if constexpr (kLastLane != 0) rotate<kFirstLane, kLastLane>(x, lane);
}

}  // namespace fovea::attention::prefill
