// Loops that compilers vectorize.
#include "cpu/ops/fp8_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "abi/fp8_args.h"
#include "base/half.h"
#include "cpu/attention/convert.h"

namespace fovea::cpu {
namespace {

void widen(const TensorView& weight, std::int64_t row, float* x) {
  const std::int64_t first = row * weight.strides[0], width = weight.shape[1];
  const auto* halves = static_cast<const std::uint16_t*>(weight.data) + first;
  switch (weight.dtype) {
    case DType::kF32: std::copy_n(static_cast<const float*>(weight.data) + first, width, x); break;
    case DType::kF16: std::transform(halves, halves + width, x, f16_to_float); break;
    default: std::transform(halves, halves + width, x, bf16_to_float); break;
  }
}

}  // namespace

void quantize_rows(const TensorView& weight, std::uint8_t* codes, float* scales, ThreadPool& pool) {
  const std::int64_t width = weight.shape[1];
  constexpr std::int64_t kGrain = 16;
  pool.parallel_for(weight.shape[0], kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> x(static_cast<std::size_t>(width));
    for (std::int64_t row = begin; row < end; ++row) {
      widen(weight, row, x.data());
      float most = 0.0f;
      for (const float value : x) most = std::max(most, std::abs(value));
      const float scale = abi::fp8_row_scale(most);
      const float inverse = 1.0f / scale;
      std::uint8_t* const to = codes + row * width;
      for (std::int64_t i = 0; i < width; ++i) to[i] = e4m3_of(x[static_cast<std::size_t>(i)] * inverse);
      scales[row] = scale;
    }
  });
}

}  // namespace fovea::cpu
