// Macros of kernels/model/linear/config.cuh.
#include "jit/linear_spec.h"

#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::jit {

Result<KernelSource> linear_source(const LinearKernelSpec& spec) {
  FOVEA_ASSIGN_OR_RETURN(const int arch, kernel_arch(spec.arch));
  if (arch < 900) return unsupported("the kernel of small products needs sm_90a, the architecture is {}", spec.arch);
  if (spec.dtype != abi::KvDType::kBF16 && spec.dtype != abi::KvDType::kF16) {
    return unsupported("the kernel of small products takes f16 and bf16");
  }
  if (spec.norm && spec.dtype != abi::KvDType::kBF16) {
    return unsupported("only bf16 is normalized within a product; normalize f16 before");
  }
  if (spec.tokens != 8 && spec.tokens != abi::kLinearMaxTokens) {
    return invalid_argument("a kernel of small products is for 8 or 16 rows, not {}", spec.tokens);
  }
  if (spec.fp8 && spec.tokens != 8) return unsupported("small products of e4m3 weights take 8 rows at most");
  if (spec.split < 1 || spec.split > abi::kLinearMaxSplit || (spec.split & (spec.split - 1)) != 0) {
    return invalid_argument("a product is split among {} CTAs, expected 1, 2, 4 or 8", spec.split);
  }
  return kernel_source("linear", spec.arch, "kernels/model/linear/skinny.cuh",
                       {{"FOVEA_LINEAR_BF16", spec.dtype == abi::KvDType::kBF16 ? "1" : "0"},
                        {"FOVEA_LINEAR_FP8", spec.fp8 ? "1" : "0"},
                        {"FOVEA_LINEAR_BLOCKS", std::to_string(spec.tokens / 8)},
                        {"FOVEA_LINEAR_SPLIT", std::to_string(spec.split)},
                        {"FOVEA_LINEAR_NORM", spec.norm ? "1" : "0"},
                        {"FOVEA_LINEAR_ACTIVATION", std::to_string(static_cast<int>(spec.activation))},
                        {"FOVEA_LINEAR_STAGES", std::to_string(spec.ring.stages)},
                        {"FOVEA_LINEAR_STAGE_ROWS", std::to_string(spec.ring.rows)},
                        {"FOVEA_LINEAR_STAGE_SLICES", std::to_string(spec.ring.slices)},
                        {"FOVEA_LINEAR_CTAS", std::to_string(spec.ctas)}});
}

}  // namespace fovea::jit
