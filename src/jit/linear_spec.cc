// Macros of kernels/model/linear/config.cuh.
#include "jit/linear_spec.h"

#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::jit {
namespace {

Status check(const std::string& arch, abi::KvDType dtype, bool norm, std::uint32_t split) {
  FOVEA_ASSIGN_OR_RETURN(const int number, kernel_arch(arch));
  if (number < 900) return unsupported("the kernel of small products needs sm_90a, the architecture is {}", arch);
  if (dtype != abi::KvDType::kBF16 && dtype != abi::KvDType::kF16) {
    return unsupported("the kernel of small products takes f16 and bf16");
  }
  if (norm && dtype != abi::KvDType::kBF16) {
    return unsupported("only bf16 is normalized within a product; normalize f16 before");
  }
  if (split < 1 || split > abi::kLinearMaxSplit || (split & (split - 1)) != 0) {
    return invalid_argument("a product is split among {} CTAs, expected 1, 2, 4 or 8", split);
  }
  return ok_status();
}

}  // namespace

Result<KernelSource> linear_source(const LinearKernelSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check(spec.arch, spec.dtype, spec.norm, spec.split));
  if (spec.tokens != 8 && spec.tokens != abi::kLinearMaxTokens) {
    return invalid_argument("a kernel of small products is for 8 or 16 rows, not {}", spec.tokens);
  }
  if (spec.fp8 && spec.tokens != 8) return unsupported("small products of e4m3 weights take 8 rows at most");
  return kernel_source("linear", spec.arch, "kernels/model/linear/skinny.cuh",
                       {{"FOVEA_LINEAR_BF16", spec.dtype == abi::KvDType::kBF16 ? "1" : "0"},
                        {"FOVEA_LINEAR_FP8", spec.fp8 ? "1" : "0"},
                        {"FOVEA_LINEAR_BLOCKS", std::to_string(spec.tokens / 8)},
                        {"FOVEA_LINEAR_SPLIT", std::to_string(spec.split)},
                        {"FOVEA_LINEAR_NORM", spec.norm ? "1" : "0"},
                        {"FOVEA_LINEAR_ACTIVATION", std::to_string(static_cast<int>(spec.activation))},
                        {"FOVEA_LINEAR_STAGES", std::to_string(spec.ring.stages)},
                        {"FOVEA_LINEAR_STAGE_SLICES", std::to_string(spec.ring.slices)},
                        {"FOVEA_LINEAR_CTAS", std::to_string(spec.ctas)}});
}

Result<KernelSource> batch_linear_source(const BatchLinearKernelSpec& spec) {
  const abi::LinearBatch& b = spec.batch;
  FOVEA_RETURN_IF_ERROR(check(spec.arch, spec.dtype, spec.norm, b.split));
  if (b.tokens < 8 || b.tokens > abi::kBatchMaxTokens || (b.tokens & (b.tokens - 1)) != 0) {
    return invalid_argument("a kernel of products of a batch is for 8, 16, 32 or 64 rows, not {}", b.tokens);
  }
  if (b.stages < 1 || b.pieces < 2 || b.held < 2) {
    return invalid_argument("a product of {} stages, {} pieces of x and {} tiles, expected at least 1, 2 and 2",
                            b.stages, b.pieces, b.held);
  }
  return kernel_source("linear-batch", spec.arch, "kernels/model/linear/batch.cuh",
                       {{"FOVEA_BATCH_BF16", spec.dtype == abi::KvDType::kBF16 ? "1" : "0"},
                        {"FOVEA_BATCH_NORM", spec.norm ? "1" : "0"},
                        {"FOVEA_BATCH_ACTIVATION", std::to_string(static_cast<int>(spec.activation))},
                        {"FOVEA_BATCH_STREAMED", spec.streamed ? "1" : "0"},
                        {"FOVEA_BATCH_TOKENS", std::to_string(b.tokens)},
                        {"FOVEA_BATCH_SPLIT", std::to_string(b.split)},
                        {"FOVEA_BATCH_STAGES", std::to_string(b.stages)},
                        {"FOVEA_BATCH_PIECES", std::to_string(b.pieces)},
                        {"FOVEA_BATCH_HELD", std::to_string(b.held)}});
}

}  // namespace fovea::jit
