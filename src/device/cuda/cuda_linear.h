// Linear on a CUDA device: weights stacked in device memory in the activations' type, products by cuBLASLt. Made by the
// CUDA device.
#pragma once

#include <memory>
#include <optional>

#include "attention/attention_checks.h"
#include "cuda/matmul.h"
#include "cuda/memory.h"
#include "device/device.h"

namespace fovea {

inline cuda::MatmulType matmul_type(DType dtype) {
  return dtype == DType::kF16    ? cuda::MatmulType::kF16
         : dtype == DType::kBF16 ? cuda::MatmulType::kBF16
                                 : cuda::MatmulType::kF32;
}

// Rows that batch-invariant products are made of: a whole tile of the library's kernels, and always as many, so that
// every product has the same algorithm, and a row the same order of sums, whatever is beside it.
class FixedRows {
 public:
  static constexpr std::int64_t kRows = 64;

  // Room for x [kRows, in] and y [kRows, out] of up to 4 bytes an element.
  Status reserve(const cuda::Device& device, std::int64_t in, std::int64_t out);
  void* x() const { return x_.data(); }
  void* y() const { return y_.data(); }
  const cuda::Device& device() const { return *device_; }

 private:
  std::optional<cuda::Device> device_;
  cuda::DeviceBuffer x_, y_;
};

class CudaLinear final : public Linear {
 public:
  // weight: [out, in] of dtype; bias: [out] of dtype, or empty. matmul and fixed (null: products of all rows at once)
  // must outlive it; products go to the stream.
  CudaLinear(std::shared_ptr<const cuda::DeviceBuffer> weight, cuda::DeviceBuffer bias, std::int64_t in,
             std::int64_t out, DType dtype, DevicePlace place, cuda::Matmul& matmul, FixedRows* fixed,
             cuda::StreamHandle stream)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        in_(in),
        out_(out),
        dtype_(dtype),
        place_(place),
        matmul_(matmul),
        fixed_(fixed),
        stream_(stream) {}

  // y: of dtype or, without a bias, f32.
  Status forward(const TensorView& x, const TensorView& y) override;
  std::int64_t in_features() const override { return in_; }
  std::int64_t out_features() const override { return out_; }

 private:
  std::shared_ptr<const cuda::DeviceBuffer> weight_;
  cuda::DeviceBuffer bias_;
  std::int64_t in_, out_;
  DType dtype_;
  DevicePlace place_;
  Status forward_fixed(cuda::MatmulSpec spec, const TensorView& x, const TensorView& y);

  cuda::Matmul& matmul_;
  FixedRows* fixed_;
  cuda::StreamHandle stream_;
};

}  // namespace fovea
