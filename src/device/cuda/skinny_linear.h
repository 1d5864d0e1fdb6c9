// Decode's matrix products on a GPU: y = x w^T for 1 to 16 rows of x, 1 to 8 with e4m3 weights, at the speed of memory,
// with what surrounds them. Made once a weight by the CUDA device's Linear. The kernel is
// kernels/model/linear/skinny.cuh.
#pragma once

#include <string>
#include <vector>

#include "device/cuda/product.h"
#include "jit/kernel_source.h"

namespace fovea {

// The kernels that a SkinnyLinear of the spec launches on devices of an architecture; needs no GPU. kUnsupported as
// create() says.
Result<std::vector<jit::KernelSource>> skinny_kernels(const std::string& arch, const ProductSpec& spec);

class SkinnyLinear {
 public:
  static constexpr std::int64_t kMaxRows = abi::kLinearMaxTokens;

  // weights: [out, in] in device memory, 16-byte aligned, for as long as this lives; scales: [out] likewise, with fp8.
  // kUnsupported: an architecture, type or size that the kernel does not take, or a product too small to gain from it;
  // use cuBLASLt.
  static Result<SkinnyLinear> create(const cuda::Device& device, const ProductSpec& spec, const void* weights,
                                     const float* scales = nullptr);

  std::int64_t columns() const { return spec_.columns(); }
  // Whether forward() takes tensors that lie so: up to 16 rows, aligned to 16 bytes (x) and 4 bytes (y).
  bool takes(const ProductCall& call) const;
  // Launched with programmatic serialization: every kernel of the stream behind it must be launched without, or wait
  // for earlier ones itself. The same bits whatever runs beside, and for a row the same among 1 to 8 and among 9 to 16
  // rows. The device's context must be current.
  Status forward(const ProductCall& call, cuda::StreamHandle stream) const;

 private:
  const ProductLaunch& kernel_for(std::int64_t rows) const { return kernels_[rows > 8 ? 1 : 0]; }

  ProductSpec spec_;
  const float* scales_ = nullptr;
  ProductLaunch kernels_[2];  // for up to 8 rows, and for up to 16
};

}  // namespace fovea
