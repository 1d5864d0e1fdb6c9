// Decode's matrix products on a GPU: y = x w^T for 1 to 16 rows of x at the speed of memory, with what surrounds them:
// the RMS norm of x, bias, residual, gate. Made once a weight by the CUDA device's Linear, which takes cuBLASLt for
// more rows and for what is refused here. The kernel is kernels/model/linear/skinny.cuh.
#pragma once

#include <string>
#include <vector>

#include "abi/linear_args.h"
#include "cuda/module.h"
#include "fovea/dtype.h"
#include "jit/kernel_source.h"

namespace fovea {

struct SkinnyLinearSpec {
  std::int64_t in = 0;         // a multiple of 32, or 64 with fp8
  std::int64_t out = 0;        // rows of the weights, a multiple of 8
  DType dtype = DType::kBF16;  // of x, bias, residual, and of weights if not fp8: kBF16, kF16
  bool fp8 = false;            // weights are e4m3 with a scale a row; 1 to 8 rows of x then
  bool norm = false;           // x is normalized first; kBF16 only
  bool norm_plus_one = false;  // the norm's weights are one more than stored
  float norm_eps = 0.0f;
  // Not kNone: the first half of the rows is the gate of the second, y = activation(gate) * up has out / 2 columns.
  abi::LinearActivation activation = abi::LinearActivation::kNone;
  std::int64_t most_rows = abi::kLinearMaxTokens;  // kernels are made for up to so many
};

// The kernels that a SkinnyLinear of the spec launches on devices of an architecture; needs no GPU. kUnsupported as
// create() says.
Result<std::vector<jit::KernelSource>> skinny_kernels(const std::string& arch, const SkinnyLinearSpec& spec);

class SkinnyLinear {
 public:
  static constexpr std::int64_t kMaxRows = abi::kLinearMaxTokens;

  // x [rows, in], y [rows, columns()] and residual, with rows so many elements apart; device memory.
  struct Call {
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

  // weights: [out, in] in device memory, 16-byte aligned, for as long as this lives; scales: [out] likewise, with fp8.
  // kUnsupported: an architecture, type or size that the kernel does not take, or a product too small to gain from it;
  // use cuBLASLt.
  static Result<SkinnyLinear> create(const cuda::Device& device, const SkinnyLinearSpec& spec, const void* weights,
                                     const float* scales = nullptr);

  std::int64_t columns() const { return spec_.out / (gated() ? 2 : 1); }
  // Whether forward() takes tensors that lie so: up to 16 rows, aligned to 16 bytes (x) and 4 bytes (y).
  bool takes(const Call& call) const;
  // Launched with programmatic serialization: every kernel of the stream behind it must be launched without, or wait
  // for earlier ones itself. The same bits whatever runs beside, and for a row the same among 1 to 8 and among 9 to 16
  // rows. The device's context must be current.
  Status forward(const Call& call, cuda::StreamHandle stream) const;

 private:
  // The kernel for up to 8 rows, and for up to 16.
  struct Kernel {
    cuda::Function function;
    abi::LinearShape shape{};
    std::uint32_t smem_bytes = 0;
  };

  bool gated() const { return spec_.activation != abi::LinearActivation::kNone; }
  const Kernel& kernel_for(std::int64_t rows) const { return kernels_[rows > 8 ? 1 : 0]; }

  SkinnyLinearSpec spec_;
  const float* scales_ = nullptr;
  Kernel kernels_[2];
};

}  // namespace fovea
