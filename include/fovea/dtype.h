// Element types of tensors and KV pools.
#pragma once

#include <cstdint>
#include <string_view>

namespace fovea {

enum class DType : std::uint8_t { kF32 = 0, kF16, kBF16, kF8E4M3, kI8, kI4, kI32, kI64, kU8 };

// Bits of one element: 4 for kI4, 8..64 for the others.
constexpr int dtype_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 32;
    case DType::kF16:
    case DType::kBF16: return 16;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8: return 8;
    case DType::kI4: return 4;
    case DType::kI64: return 64;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF8E4M3: return "fp8_e4m3";
    case DType::kI8: return "int8";
    case DType::kI4: return "int4";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
  }
  return "?";
}

}  // namespace fovea
