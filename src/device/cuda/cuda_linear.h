// Linear on a CUDA device: weights stacked in device memory in the activations' type; products of few rows by
// SkinnyLinear, others by cuBLASLt. Made by the CUDA device.
#pragma once

#include <memory>
#include <optional>

#include "attention/attention_checks.h"
#include "cuda/matmul.h"
#include "cuda/memory.h"
#include "device/cuda/skinny_linear.h"
#include "device/device.h"

namespace fovea {

inline cuda::MatmulType matmul_type(DType dtype) {
  return dtype == DType::kF16    ? cuda::MatmulType::kF16
         : dtype == DType::kBF16 ? cuda::MatmulType::kBF16
                                 : cuda::MatmulType::kF32;
}

class CudaLinear final : public Linear {
 public:
  // weight: [out, in] of dtype; bias: [out] of dtype, or empty. matmul: must outlive it, its products go to the stream.
  CudaLinear(std::shared_ptr<const cuda::DeviceBuffer> weight, cuda::DeviceBuffer bias, std::int64_t in,
             std::int64_t out, DType dtype, const cuda::Device& device, cuda::Matmul& matmul, cuda::StreamHandle stream)
      : device_(device),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        in_(in),
        out_(out),
        dtype_(dtype),
        matmul_(matmul),
        stream_(stream) {}

  // Compiles and loads the kernels of few rows, once, so that no step waits for them.
  Status prepare();
  // The same with what stands around; norm: [in] of dtype, empty where there is none.
  Status fuse(const LinearFusion& fusion, cuda::DeviceBuffer norm);
  // y: of dtype or, without a bias, f32.
  Status forward(const TensorView& x, const TensorView& y) override;
  bool fuses(std::int64_t rows) const override { return fused_.has_value() && is_few(rows); }
  Status forward_fused(const TensorView& x, const TensorView& y) override;
  bool adds(std::int64_t rows) const override { return few_.has_value() && is_few(rows); }
  Status forward_add(const TensorView& x, const TensorView& y) override;
  std::int64_t in_features() const override { return in_; }
  std::int64_t out_features() const override { return out_; }

 private:
  // Of 9 to 16 rows cuBLASLt's products are faster; see docs/kernels/linear.md.
  static constexpr std::int64_t kFewRows = 8;
  static bool is_few(std::int64_t rows) { return rows >= 1 && rows <= kFewRows; }

  Status check(const TensorView& x, const TensorView& y, std::int64_t columns) const;
  // Of contiguous rows, aligned as allocators leave them.
  SkinnyLinear::Call call_of(const TensorView& x, const TensorView& y) const;
  Status launch(const SkinnyLinear& kernel, const SkinnyLinear::Call& call) const;

  cuda::Device device_;
  std::shared_ptr<const cuda::DeviceBuffer> weight_;
  cuda::DeviceBuffer bias_;
  std::int64_t in_, out_;
  DType dtype_;
  std::optional<SkinnyLinear> few_;    // for products of few rows; empty where cuBLASLt serves those too
  std::optional<SkinnyLinear> fused_;  // with what stands around
  cuda::DeviceBuffer norm_;
  cuda::Matmul& matmul_;
  cuda::StreamHandle stream_;
};

}  // namespace fovea
