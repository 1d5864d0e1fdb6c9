// Linear on a CUDA device: weights stacked in device memory in the activations' type or in e4m3; products by
// SkinnyLinear, BatchLinear or cuBLASLt, as choose_product() says. Made by the CUDA device.
#pragma once

#include <memory>
#include <optional>

#include "attention/attention_checks.h"
#include "cuda/matmul.h"
#include "cuda/memory.h"
#include "device/cuda/batch_linear.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/product_choice.h"
#include "device/cuda/skinny_linear.h"
#include "device/device.h"

namespace fovea {

inline cuda::MatmulType matmul_type(DType dtype) {
  return dtype == DType::kF16    ? cuda::MatmulType::kF16
         : dtype == DType::kBF16 ? cuda::MatmulType::kBF16
                                 : cuda::MatmulType::kF32;
}

// What products with e4m3 weights put between: activations as e4m3, or weights in the activations' type. One for all
// products of a stream.
class Fp8Scratch {
 public:
  static constexpr std::int64_t kRows = 2048;  // of activations, at once
  static constexpr std::size_t kExpandedBytes = std::size_t{32} << 20;

  // Room for rows of so many numbers; before anything is enqueued or captured that uses it.
  Status reserve(const cuda::Device& device, std::int64_t in);
  std::uint8_t* codes() const { return codes_.as<std::uint8_t>(); }
  float* scales() const { return scales_.as<float>(); }
  void* expanded() const { return expanded_.data(); }

 private:
  cuda::DeviceBuffer codes_, scales_, expanded_;
};

// What the linears of a device share: all must outlive them, and products go to the stream.
struct CudaLinearContext {
  const cuda::Device& device;
  cuda::Matmul& matmul;
  CudaOps& ops;
  Fp8Scratch& fp8;
  cuda::StreamHandle stream;
  bool fixed = false;  // a row's bits do not depend on how many rows there are: all go to cuBLASLt (MatmulSpec::fixed)
};

// The kernels of a model's products (SkinnyLinear, BatchLinear), with norms and gates and without: what `fovea warmup`
// compiles. Those of layers are fp8 or not, that of the vocabulary is not. Empty where an architecture has none.
struct ProductSizes {
  std::int64_t hidden = 0, attention = 0, intermediate = 0;  // attention: features of all query heads
};
Result<std::vector<jit::KernelSource>> product_kernels(const std::string& arch, DType dtype, bool fp8,
                                                       const ProductSizes& sizes, Activation gate);

class CudaLinear final : public Linear {
 public:
  // weight: [out, in] of dtype, or e4m3 with scales [out] of f32, else empty; bias: [out] of dtype, or empty.
  CudaLinear(std::shared_ptr<const cuda::DeviceBuffer> weight, cuda::DeviceBuffer scales, cuda::DeviceBuffer bias,
             std::int64_t in, std::int64_t out, DType dtype, const CudaLinearContext& context)
      : device_(context.device),
        weight_(std::move(weight)),
        scales_(std::move(scales)),
        bias_(std::move(bias)),
        in_(in),
        out_(out),
        dtype_(dtype),
        matmul_(context.matmul),
        ops_(context.ops),
        fp8_(context.fp8),
        stream_(context.stream),
        fixed_(context.fixed) {}

  // Compiles and loads the kernels, once, so that no step waits for them.
  Status prepare();
  // The same with what stands around; norm: [in] of dtype, empty where there is none.
  Status fuse(const LinearFusion& fusion, cuda::DeviceBuffer norm);
  // y: of dtype or, without a bias, f32.
  Status forward(const TensorView& x, const TensorView& y) override;
  bool fuses(std::int64_t rows) const override { return choose(fused_, rows).kernel != ProductKernel::kCublasLt; }
  Status forward_fused(const TensorView& x, const TensorView& y) override;
  bool adds(std::int64_t rows) const override { return choose(plain_, rows).kernel != ProductKernel::kCublasLt; }
  Status forward_add(const TensorView& x, const TensorView& y) override;
  std::int64_t in_features() const override { return in_; }
  std::int64_t out_features() const override { return out_; }

 private:
  // Kernels for the weights; empty where they take no such product.
  struct Kernels {
    std::optional<SkinnyLinear> skinny;
    std::optional<BatchLinear> batch;
  };

  Result<Kernels> make_kernels(const ProductSpec& spec) const;
  // Of tensors aligned as allocators leave them.
  ProductChoice choose(const Kernels& kernels, std::int64_t rows) const;
  ProductChoice choose(const Kernels& kernels, const ProductCall& call) const;
  Status launch(const Kernels& kernels, ProductKernel kernel, const ProductCall& call) const;
  Status check(const TensorView& x, const TensorView& y, std::int64_t columns) const;
  ProductCall call_of(const TensorView& x, const TensorView& y) const;
  ProductSpec spec() const { return {.in = in_, .out = out_, .dtype = dtype_, .fp8 = is_fp8()}; }
  bool is_fp8() const { return scales_.data() != nullptr; }
  cuda::MatmulSpec spec_of(const TensorView& x, const TensorView& y) const;
  // Of activations rounded to e4m3 with a scale a row; kUnsupported where cuBLASLt has no such product.
  Status multiply_fp8(const TensorView& x, const TensorView& y);
  // Of weights expanded, some rows after the others.
  Status multiply_expanded(const TensorView& x, const TensorView& y);

  cuda::Device device_;
  std::shared_ptr<const cuda::DeviceBuffer> weight_;
  cuda::DeviceBuffer scales_;
  cuda::DeviceBuffer bias_;
  std::int64_t in_, out_;
  DType dtype_;
  Kernels plain_;
  Kernels fused_;  // with what stands around
  std::int64_t fused_columns_ = 0;
  cuda::DeviceBuffer norm_;
  bool multiplies_fp8_ = true;  // until cuBLASLt says otherwise
  cuda::Matmul& matmul_;
  CudaOps& ops_;
  Fp8Scratch& fp8_;
  cuda::StreamHandle stream_;
  bool fixed_;
};

}  // namespace fovea
