// Decode's matrix products on a GPU for batches: y = x w^T for up to 64 rows of x at the speed of memory, with what
// surrounds them. Made once a weight by the CUDA device's Linear. The kernel is kernels/model/linear/batch.cuh.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "device/cuda/product.h"
#include "jit/kernel_source.h"

namespace fovea {

// The kernels that a BatchLinear of the spec launches on devices of an architecture; needs no GPU. kUnsupported as
// create() says.
Result<std::vector<jit::KernelSource>> batch_kernels(const std::string& arch, const ProductSpec& spec);

class BatchLinear {
 public:
  static constexpr std::int64_t kMaxRows = abi::kBatchMaxTokens;

  // weights: [out, in] in device memory, 16-byte aligned, for as long as this lives. kUnsupported: an architecture,
  // type or size that the kernel does not take; use cuBLASLt.
  static Result<BatchLinear> create(const cuda::Device& device, const ProductSpec& spec, const void* weights);

  std::int64_t columns() const { return spec_.columns(); }
  // Whether forward() takes tensors that lie so: the spec's rows, up to 64, aligned to 16 bytes (x) and 4 bytes (y).
  bool takes(const ProductCall& call) const;
  // Launched with programmatic serialization: every kernel of the stream behind it must be launched without, or wait
  // for earlier ones itself. The same bits whatever runs beside, and for a row the same among the numbers of rows that
  // a kernel serves (up to 8, 16, 32, 64). The device's context must be current.
  Status forward(const ProductCall& call, cuda::StreamHandle stream) const;

 private:
  const ProductLaunch& kernel_for(std::int64_t rows) const {
    return kernels_[rows > 32 ? 3 : rows > 16 ? 2 : rows > 8 ? 1 : 0];
  }

  ProductSpec spec_;
  std::array<ProductLaunch, 4> kernels_;  // for up to 8, 16, 32 and 64 rows; empty where the spec has no such rows
};

}  // namespace fovea
