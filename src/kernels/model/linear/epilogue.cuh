// What sums of products become: the norm's factor, bias, activation and gate, residual, y's type. Used by both kernels
// of decode's products.
#pragma once

#include "abi/linear_args.h"
#include "kernels/ptx/mma.cuh"

namespace fovea::linear {

template <abi::LinearActivation kKind>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kKind == abi::LinearActivation::kSilu) return x / (1.0f + __expf(-x));
  if constexpr (kKind == abi::LinearActivation::kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if constexpr (kKind == abi::LinearActivation::kGeluTanh) {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

// The sums of a pair of rows and a token, in fp32 and multiplied by all that rows and tokens are scaled with; bias and
// residual: two numbers of x's type.
template <bool kBf16, abi::LinearActivation kActivation>
__device__ __forceinline__ void write_pair(const abi::LinearArgs& args, uint32_t pair, uint32_t token, float2 v,
                                           uint32_t bias, uint32_t residual) {
  v.x += ptx::unpack_low<kBf16>(bias);
  v.y += ptx::unpack_high<kBf16>(bias);
  if constexpr (kActivation != abi::LinearActivation::kNone) {
    const float gated = activate<kActivation>(v.x) * v.y;
    static_cast<uint16_t*>(args.y)[token * args.y_stride + pair] =
        static_cast<uint16_t>(ptx::pack2<kBf16>(gated, 0.0f));
  } else if (args.f32_out != 0) {
    auto* const to = static_cast<float*>(args.y) + token * args.y_stride + 2ull * pair;
    to[0] = v.x;
    to[1] = v.y;
  } else {
    v.x += ptx::unpack_low<kBf16>(residual);
    v.y += ptx::unpack_high<kBf16>(residual);
    auto* const to = static_cast<uint16_t*>(args.y) + token * args.y_stride + 2ull * pair;
    *reinterpret_cast<uint32_t*>(to) = ptx::pack2<kBf16>(v.x, v.y);
  }
}

}  // namespace fovea::linear
