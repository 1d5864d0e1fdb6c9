// A matrix product of decode with what surrounds it, as the kernels of kernels/model/linear take it: y = x w^T, the RMS
// norm of x, bias, residual, gate. Used by SkinnyLinear (few rows of x) and BatchLinear (more), and their caller, the
// CUDA device's Linear.
#pragma once

#include <cstdint>
#include <string>

#include "abi/linear_args.h"
#include "cuda/module.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

struct ProductSpec {
  std::int64_t in = 0;         // a multiple of 32, or 64 with fp8
  std::int64_t out = 0;        // rows of the weights, a multiple of 8
  DType dtype = DType::kBF16;  // of x, bias, residual, and of weights if not fp8: kBF16, kF16
  bool fp8 = false;            // weights are e4m3 with a scale a row
  bool norm = false;           // x is normalized first; kBF16 only
  bool norm_plus_one = false;  // the norm's weights are one more than stored
  float norm_eps = 0.0f;
  // Not kNone: the first half of the rows is the gate of the second, y = activation(gate) * up has out / 2 columns.
  abi::LinearActivation activation = abi::LinearActivation::kNone;
  // Kernels are made for so many rows of x: others are never asked for.
  std::int64_t least_rows = 1;
  std::int64_t most_rows = abi::kBatchMaxTokens;

  bool gated() const { return activation != abi::LinearActivation::kNone; }
  std::int64_t columns() const { return gated() ? out / 2 : out; }  // of y
};

// x [rows, in], y [rows, columns()] and residual, with rows so many elements apart; device memory.
struct ProductCall {
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  void* y = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t rows = 0;
  bool f32_out = false;            // y is fp32, where there is no residual or gate; else of x's type
  const void* bias = nullptr;      // [out], or null
  const void* residual = nullptr;  // like y, which may be in its place; added to the product, or null
  const void* norm = nullptr;      // [in], where the spec has a norm
};

// kUnsupported: an architecture, type or size that no kernel takes.
Status check_product(const std::string& arch, const ProductSpec& spec);
// kInvalidArgument: weights that are not aligned to 16 bytes; scales without fp8 or fp8 without scales.
Status check_weights(const ProductSpec& spec, const void* weights, const float* scales);
// Whether tensors are aligned as kernels read and write them: to 16 bytes (x) and 4 bytes (y, residual).
bool is_aligned(const ProductSpec& spec, const ProductCall& call);
// kInvalidArgument: a call that does not fit the spec.
Status check_call(const ProductSpec& spec, const ProductCall& call);
// All but the shape's division and when the next kernel may start.
abi::LinearArgs product_args(const ProductSpec& spec, const ProductCall& call, const float* scales);
// Without a division.
abi::LinearShape product_shape(const ProductSpec& spec, const void* weights);

// A kernel for some numbers of rows, and how it divides the product; split 0: there is none.
struct ProductLaunch {
  cuda::Function function;
  abi::LinearShape shape{};
  std::uint32_t ctas = 0;
  std::uint32_t threads = 0;  // of a CTA
  std::uint32_t smem_bytes = 0;

  bool exists() const { return shape.split != 0; }
};
// takes: what the owner of the kernel says of the call. Launched with programmatic serialization.
Status launch_product(const ProductLaunch& kernel, const ProductSpec& spec, const ProductCall& call, bool takes,
                      const float* scales, std::uint32_t early, cuda::StreamHandle stream);

}  // namespace fovea
