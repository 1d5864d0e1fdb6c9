// Scalar conversion of e4m3 (a sign, 4 bits of exponent, 3 of fraction; no infinities) to fp32. For packing, loading
// and tests; kernels convert whole vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace fovea {

// Exact. All ones but for the sign is NaN.
constexpr float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t size = bits & 0x7fu;
  if (size == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  const float value = std::bit_cast<float>(size << 20) * 0x1p120f;
  return (bits & 0x80u) != 0 ? -value : value;
}

}  // namespace fovea
