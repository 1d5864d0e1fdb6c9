// Scalar conversions between fp32 and the 16-bit and 8-bit storage types, rounding to nearest even. Used where rows are
// few or rare: queries, outputs, append.
#pragma once

#include <bit>
#include <cstdint>

namespace fovea::cpu {

inline float float_of_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

inline std::uint16_t bf16_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  return x == x ? rounded : static_cast<std::uint16_t>((bits >> 16) | 0x40u);
}

inline float float_of_f16(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000u) << 16;
  const std::uint32_t size = x & 0x7fffu;
  if (size >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((size & 0x3ffu) << 13));
  // Moves the exponent to fp32's place and corrects its bias (15 to 127) by a product, which handles subnormals too.
  const float scaled = std::bit_cast<float>(size << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

inline std::uint16_t f16_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (size >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and up
  if (size < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves a multiple of 2^-24 in the low bits, rounded to even by the addition.
    const float sum = std::bit_cast<float>(size) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t rounded = size + 0xfffu + ((size >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// The smallest f16 with at most 8 significant bits (the last three 0) that is not below x; x is from 0 to 65280.
inline std::uint16_t short_f16_above(float x) {
  const auto below = static_cast<std::uint16_t>(f16_of(x) & ~7u);
  return float_of_f16(below) < x ? static_cast<std::uint16_t>(below + 8) : below;
}

// e4m3 (no infinities): beyond 448 that, NaN stays NaN.
inline std::uint8_t e4m3_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (size >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (size < 0x3c800000u) {
    // Below 2^-6: multiples of 2^-9, which the addition of 2^14 rounds to.
    const float sum = std::bit_cast<float>(size) + 16384.0f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x46800000u));
  }
  return static_cast<std::uint8_t>(sign | ((size + 0x7ffffu + (size >> 20 & 1u) - (120u << 23)) >> 20));
}

}  // namespace fovea::cpu
