// Products of large batches by oneDNN: bf16 x bf16 -> fp32, on AMX where the CPU has it. Used by matmul() for rows that
// come by the hundred; weights are used where the caller keeps them, row by row, so there is no second copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/ops/aligned_buffer.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// Rows that one call multiplies: one size, because oneDNN prepares code for each.
inline constexpr std::int64_t kDnnlRows = 128;

class DnnlProduct {
 public:
  // parts: bf16 [out_features of the part, in_features] each, rows contiguous; they must outlive the product.
  // num_threads: threads that may call run() at the same time. Null when oneDNN has no implementation for the shape.
  static std::unique_ptr<DnnlProduct> create(std::span<const TensorView> parts, std::int64_t y_stride, int num_threads);
  ~DnnlProduct();

  // y[kDnnlRows, all parts] = x W^T + bias. x: bf16 [kDnnlRows, in_features], contiguous; y: y_stride floats a row;
  // bias: of all parts, or null. thread < num_threads, another one for each call under way.
  void run(const std::uint16_t* x, const float* bias, float* y, int thread) const;

  // Floats a row of y that run() was prepared for.
  std::int64_t y_stride() const { return y_stride_; }

 private:
  struct Impl;
  DnnlProduct(std::unique_ptr<Impl> impl, std::int64_t y_stride);
  std::unique_ptr<Impl> impl_;
  std::int64_t y_stride_;
};

}  // namespace fovea::cpu
