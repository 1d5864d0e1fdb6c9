// Rounding to fp16 and fp8 e4m3 that never loses a bound: down for a minimum, up for a maximum. Used by the statistics
// of pages (stats.cc).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "cpu/attention/convert.h"

namespace fovea::cpu {

inline constexpr float kLargestF16 = 65504.0f;
inline constexpr float kLargestE4M3 = 448.0f;

// The least fp16 at or above x; beyond +-65504 that number.
inline std::uint16_t f16_up(float x) {
  x = std::clamp(x, -kLargestF16, kLargestF16);
  const std::uint16_t near = f16_of(x);
  if (float_of_f16(near) >= x) return near;
  if (near == 0x8000u) return 1;
  return static_cast<std::uint16_t>((near & 0x8000u) != 0 ? near - 1 : near + 1);
}
inline std::uint16_t f16_down(float x) { return static_cast<std::uint16_t>(f16_up(-x) ^ 0x8000u); }

// e4m3 has the bits of an fp16 with one exponent bit and seven fraction bits less, at 2^8 times the size.
inline float float_of_e4m3(std::uint8_t x) {
  const auto half = static_cast<std::uint16_t>((x & 0x80u) << 8 | (x & 0x7fu) << 7);
  return float_of_f16(half) * 256.0f;
}
// The least e4m3 at or above x; |x| is at most 448.
inline std::uint8_t e4m3_up(float x) {
  // The exponent moves from bias 127 to 7; what is left of 23 fraction bits are the upper 3.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::fabs(x) * 0x1p-120f);
  auto code = static_cast<std::uint8_t>(std::min(bits >> 20, 0x7eu));
  if (std::signbit(x)) {
    // Towards zero; the conversion above may have rounded up where fp32 has no smaller numbers.
    if (code > 0 && float_of_e4m3(code) > -x) --code;
    return static_cast<std::uint8_t>(code | 0x80u);
  }
  if (code < 0x7e && float_of_e4m3(code) < x) ++code;
  return code;
}
inline std::uint8_t e4m3_down(float x) { return static_cast<std::uint8_t>(e4m3_up(-x) ^ 0x80u); }

}  // namespace fovea::cpu
