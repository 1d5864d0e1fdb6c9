// The functions of src/kernels/ptx/instructions.cuh for the host, so that tests run the kernels' own source, thread by
// thread. Included before a kernel header; conversions are those of the CPU backend.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/attention/convert.h"

#define __forceinline__ inline

namespace fovea::kernels {

inline std::uint32_t f16_pair(float low, float high) {
  return cpu::f16_of(low) | static_cast<std::uint32_t>(cpu::f16_of(high)) << 16;
}
inline std::uint32_t bf16_pair(float low, float high) {
  return cpu::bf16_of(low) | static_cast<std::uint32_t>(cpu::bf16_of(high)) << 16;
}
inline float f16_low(std::uint32_t pair) { return cpu::float_of_f16(static_cast<std::uint16_t>(pair)); }
inline float bits_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t float_as_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float log2_of(float x) { return std::log2(x); }
inline float exp2_of(float x) { return std::exp2(x); }
inline float fma_of(float x, float y, float z) { return std::fma(x, y, z); }
inline float product(float x, float y) { return x * y; }
inline float nearest_integer(float x) { return std::nearbyint(x); }
inline void keep_maximum(std::uint32_t* word, std::uint32_t value) { *word = std::max(*word, value); }
inline void warp_keep_maximum(std::uint32_t* word, std::uint32_t value) { *word = std::max(*word, value); }
inline void keep_maximum(std::uint64_t* word, std::uint64_t value) { *word = std::max(*word, value); }
inline std::uint32_t add_to(std::uint32_t* word, std::uint32_t value) { return (*word += value) - value; }
inline void add_one(std::uint32_t* word) { ++*word; }
inline void warp_add(std::uint32_t* word, std::uint32_t value) { *word += value; }
inline void warp_sum_add(std::int32_t* word, std::int32_t value) { *word += value; }
inline std::uint32_t count_bits(std::uint32_t word) { return static_cast<std::uint32_t>(std::popcount(word)); }
inline std::uint32_t lowest_bit(std::uint32_t word) { return static_cast<std::uint32_t>(std::countr_zero(word)); }
inline void warp_fence() {}  // lanes run in ascending order, and what they share is written by the last one

// body(thread) for every thread of the CTAs, warps in random order: a result that depends on it is a race.
template <typename Body>
void launch_on_host(std::uint64_t ctas, std::uint32_t threads, std::mt19937_64& random, Body&& body) {
  std::vector<std::uint32_t> warps(ctas * threads / 32);
  std::iota(warps.begin(), warps.end(), 0u);
  std::shuffle(warps.begin(), warps.end(), random);
  for (const std::uint32_t warp : warps) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) body(warp * 32 + lane);
  }
}

}  // namespace fovea::kernels
