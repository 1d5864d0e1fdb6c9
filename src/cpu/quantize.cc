// Rounding of rows to int8, int4 and e4m3. Written so that compilers vectorize it: no calls and no branches in loops.
#include "cpu/quantize.h"

#include <algorithm>
#include <bit>

#include "base/fp8.h"
#include "base/status.h"
#include "cpu/attention/convert.h"

namespace fovea::cpu {
namespace {

constexpr float kLargest = 65504.0f;

struct Range {
  float min, max;
};

// NaN becomes 0, what is out of the range of halves its end.
Range sanitize(float* x, int count) {
  Range range{kLargest, -kLargest};
  for (int i = 0; i < count; ++i) {
    const float number = x[i] == x[i] ? x[i] : 0.0f;
    const float y = std::min(std::max(number, -kLargest), kLargest);
    x[i] = y;
    range.min = std::min(range.min, y);
    range.max = std::max(range.max, y);
  }
  return range;
}

float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// Nearest even, by an addition that leaves no bits for fractions.
std::uint32_t code_of(float x, float zero, float inverse, int bias) {
  const float low = static_cast<float>(-bias);
  const float high = static_cast<float>(bias - 1);
  const float y = std::min(std::max((x - zero) * inverse, low), high);
  const float two23 = 12582912.0f;  // 1.5 * 2^23
  return std::bit_cast<std::uint32_t>(y + two23) - std::bit_cast<std::uint32_t>(two23) + static_cast<unsigned>(bias);
}

}  // namespace

Status check_kv_scales(const abi::KvPoolView& pool, int head_dim) {
  using abi::KvDType;
  using abi::ScaleGranularity;
  const bool integers = pool.dtype == KvDType::kI8 || pool.dtype == KvDType::kI4;
  const bool quantized = integers || pool.dtype == KvDType::kF8E4M3;
  const auto type = static_cast<int>(pool.dtype);
  if (integers && pool.granularity != ScaleGranularity::kTokenHead) {
    return invalid_argument("storage type {} needs a scale and zero for each token and head", type);
  }
  if (!quantized && pool.granularity != ScaleGranularity::kNone) {
    return invalid_argument("storage type {} has no scales, granularity is {}", type,
                            static_cast<int>(pool.granularity));
  }
  if (pool.granularity == ScaleGranularity::kTokenHead && (pool.k_scale == nullptr || pool.v_scale == nullptr)) {
    return invalid_argument("there is no memory for the scales of each token and head");
  }
  if (pool.rotated != 0 && (!integers || !std::has_single_bit(static_cast<unsigned>(head_dim)))) {
    return invalid_argument(
        "rotation is for int8 and int4 with a head_dim that is a power of two, not for type {} with {}", type,
        head_dim);
  }
  if (pool.dtype == KvDType::kI4 && ((pool.page_stride | pool.token_stride | pool.head_stride) % 2 != 0)) {
    return invalid_argument("strides of an int4 pool are even, they are {}, {} and {}", pool.page_stride,
                            pool.token_stride, pool.head_stride);
  }
  return ok_status();
}

abi::KvScale quantize_row(abi::KvDType dtype, float* x, int head_dim, std::uint8_t* to) {
  const Range range = sanitize(x, head_dim);
  if (dtype == abi::KvDType::kF8E4M3) {
    const std::uint16_t scale = short_f16_above(std::max(-range.min, range.max) * (1.0f / 448.0f));
    const float inverse = inverse_of(float_of_f16(scale));
    for (int d = 0; d < head_dim; ++d) to[d] = e4m3_of(x[d] * inverse);
    return {scale, 0};
  }
  const int bias = dtype == abi::KvDType::kI8 ? abi::kI8Bias : abi::kI4Bias;
  const std::uint16_t scale = short_f16_above((range.max - range.min) * (1.0f / static_cast<float>(2 * bias - 1)));
  const float by = float_of_f16(scale);
  const std::uint16_t zero = f16_of(std::clamp((range.max + range.min) * 0.5f + by * 0.5f, -kLargest, kLargest));
  const float offset = float_of_f16(zero);
  const float inverse = inverse_of(by);
  if (dtype == abi::KvDType::kI8) {
    for (int d = 0; d < head_dim; ++d) to[d] = static_cast<std::uint8_t>(code_of(x[d], offset, inverse, bias));
  } else {
    for (int d = 0; d < head_dim; d += 2) {
      to[d / 2] = static_cast<std::uint8_t>(code_of(x[d], offset, inverse, bias) |
                                            code_of(x[d + 1], offset, inverse, bias) << 4);
    }
  }
  return {scale, zero};
}

void dequantize_row(abi::KvDType dtype, const std::uint8_t* from, abi::KvScale scale, int head_dim, float* x) {
  const float by = float_of_f16(scale.scale);
  const float zero = float_of_f16(scale.zero);
  for (int d = 0; d < head_dim; ++d) {
    float stored;
    if (dtype == abi::KvDType::kF8E4M3) {
      stored = e4m3_to_float(from[d]);
    } else if (dtype == abi::KvDType::kI8) {
      stored = static_cast<float>(from[d] - abi::kI8Bias);
    } else {
      stored = static_cast<float>((from[d / 2] >> (d % 2 * 4) & 15) - abi::kI4Bias);
    }
    x[d] = by * stored + zero;
  }
}

}  // namespace fovea::cpu
