// Numbers of tests of kernels: random ones, and what the bits of each storage type mean.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <random>
#include <vector>

#include "abi/kv_pool.h"
#include "cpu/attention/convert.h"

namespace fovea::kernel_test {

using abi::KvDType;
using Random = std::mt19937_64;

inline constexpr KvDType kF32 = KvDType::kF32;
inline constexpr KvDType kF16 = KvDType::kF16;
inline constexpr KvDType kBF16 = KvDType::kBF16;
inline constexpr KvDType kE4M3 = KvDType::kF8E4M3;

// Memory that kernels access. It comes from the default resource, which tests on a GPU replace.
template <typename T>
using Memory = std::pmr::vector<T>;

inline int between(Random& random, int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); }

inline std::size_t type_bytes(KvDType type) { return type == kF32 ? 4 : type == kE4M3 ? 1 : 2; }

// What e4m3 number `bits` is, by its definition.
inline float float_of_e4m3(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15), fraction = static_cast<int>(bits & 7);
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return bits & 0x80 ? -size : size;
}

// The nearest e4m3 number by search: ties go to the even one, sizes beyond the largest to that.
inline std::uint32_t nearest_e4m3(float x) {
  if (std::isnan(x)) return (std::bit_cast<std::uint32_t>(x) >> 24 & 0x80) | 0x7f;
  const double size = std::fabs(static_cast<double>(x));
  std::uint32_t best = 0;
  for (std::uint32_t bits = 1; bits < 0x7f; ++bits) {
    const double gap = std::fabs(size - float_of_e4m3(bits)), best_gap = std::fabs(size - float_of_e4m3(best));
    if (gap < best_gap || (gap == best_gap && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

inline float value(KvDType type, const void* data, long long element) {
  if (type == kF32) return static_cast<const float*>(data)[element];
  if (type == kE4M3) return float_of_e4m3(static_cast<const std::uint8_t*>(data)[element]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[element];
  return type == kF16 ? cpu::float_of_f16(bits) : cpu::float_of_bf16(bits);
}

inline void set_value(KvDType type, void* data, long long element, float x) {
  if (type == kF32) {
    static_cast<float*>(data)[element] = x;
  } else {
    static_cast<std::uint16_t*>(data)[element] = type == kF16 ? cpu::f16_of(x) : cpu::bf16_of(x);
  }
}

}  // namespace fovea::kernel_test
