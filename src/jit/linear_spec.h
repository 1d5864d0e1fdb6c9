// Instantiations of the kernels of decode's matrix products (kernels/model/linear). Arguments and how a product is
// divided are in abi/linear_args.h. Called by device/cuda/skinny_linear.h and batch_linear.h and by tests.
#pragma once

#include <string>

#include "abi/kv_pool.h"
#include "abi/linear_args.h"
#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea::jit {

struct LinearKernelSpec {
  std::string arch = "sm_90a";
  abi::KvDType dtype = abi::KvDType::kBF16;  // of x, y, and weights if not fp8: kF16, kBF16
  bool fp8 = false;                          // weights are e4m3, with a scale a row; 8 rows of x at most
  std::uint32_t tokens = 8;                  // rows of x, at most: 8 or 16
  std::uint32_t split = 1;                   // LinearShape::split: 1, 2, 4 or 8
  bool norm = false;                         // bf16 only: squares and products of halves may not fit into halves
  abi::LinearActivation activation = abi::LinearActivation::kNone;
  abi::LinearRing ring{};
  std::uint32_t ctas = 2;  // an SM has registers for
};
// Entry point fovea_linear. kUnsupported: below sm_90a, other types; kInvalidArgument.
Result<KernelSource> linear_source(const LinearKernelSpec& spec);

// The kernel for more rows of x.
struct BatchLinearKernelSpec {
  std::string arch = "sm_90a";
  abi::KvDType dtype = abi::KvDType::kBF16;  // of x, weights and y: kF16, kBF16
  bool norm = false;                         // bf16 only
  abi::LinearActivation activation = abi::LinearActivation::kNone;
  bool streamed = false;  // abi::batch_streams()
  abi::LinearBatch batch{};
};
// Entry point fovea_linear_batch. kUnsupported, kInvalidArgument as above.
Result<KernelSource> batch_linear_source(const BatchLinearKernelSpec& spec);

}  // namespace fovea::jit
