// Scalar conversions between fp32 and the 16-bit storage types, rounding to nearest even. Used where rows are few or
// rare: queries, outputs, append.
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

}  // namespace fovea::cpu
