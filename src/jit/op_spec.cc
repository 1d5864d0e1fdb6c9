// Macros of the kernels between matrix products.
#include "jit/op_spec.h"

#include "abi/op_args.h"
#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::jit {
namespace {

using abi::KvDType;

std::string number(KvDType type) { return std::to_string(static_cast<int>(type)); }

Status check(KvDType dtype, std::uint32_t vec) {
  if (dtype != KvDType::kF32 && dtype != KvDType::kF16 && dtype != KvDType::kBF16) {
    return unsupported("activations must be f32, f16 or bf16");
  }
  if (vec == 1 || vec == 2 || vec == 4 || vec == 8) return ok_status();
  return invalid_argument("an access of {} elements, expected 1, 2, 4 or 8", vec);
}

}  // namespace

Result<KernelSource> norm_source(const std::string& arch, KvDType dtype, std::uint32_t vec, std::uint32_t runs) {
  FOVEA_RETURN_IF_ERROR(check(dtype, vec));
  if (runs < 1 || runs > abi::kMostNormRuns) {
    return unsupported("a norm of {} accesses a thread, expected 1 to {}: at most {} elements that are aligned to {}",
                       runs, abi::kMostNormRuns, abi::kMostNormThreads * abi::kMostNormRuns * vec, vec);
  }
  return kernel_source(
      "rms_norm", arch, "kernels/model/norm.cuh",
      {{"FOVEA_DTYPE", number(dtype)}, {"FOVEA_VEC", std::to_string(vec)}, {"FOVEA_RUNS", std::to_string(runs)}});
}

Result<KernelSource> elementwise_source(const std::string& arch, KvDType dtype, std::uint32_t vec) {
  FOVEA_RETURN_IF_ERROR(check(dtype, vec));
  return kernel_source(
      "elementwise", arch, "kernels/model/elementwise.cuh",
      {{"FOVEA_ELEMENTWISE", "1"}, {"FOVEA_DTYPE", number(dtype)}, {"FOVEA_VEC", std::to_string(vec)}});
}

Result<KernelSource> rope_append_source(const std::string& arch, KvDType dtype, int head_dim, std::uint32_t vec) {
  FOVEA_RETURN_IF_ERROR(check(dtype, vec));
  const auto dim = static_cast<std::uint32_t>(head_dim);
  if (head_dim < 2 || head_dim > 512 || dim % (2 * vec) != 0 || dim / (2 * vec) > 32) {
    return unsupported("heads of {} elements, {} an access; expected 1 to 32 pairs of accesses", head_dim, vec);
  }
  return kernel_source("rope_append", arch, "kernels/model/rope_append.cuh",
                       {{"FOVEA_ROPE_APPEND", "1"},
                        {"FOVEA_DTYPE", number(dtype)},
                        {"FOVEA_ROPE_HEAD_DIM", std::to_string(head_dim)},
                        {"FOVEA_VEC", std::to_string(vec)}});
}

Result<KernelSource> fp8_rows_source(const std::string& arch, KvDType dtype, std::uint32_t vec) {
  FOVEA_RETURN_IF_ERROR(check(dtype, vec));
  return kernel_source("fp8_rows", arch, "kernels/model/fp8_rows.cuh",
                       {{"FOVEA_FP8_ROWS", "1"}, {"FOVEA_DTYPE", number(dtype)}, {"FOVEA_VEC", std::to_string(vec)}});
}

Result<KernelSource> argmax_source(const std::string& arch, std::uint32_t vec) {
  FOVEA_RETURN_IF_ERROR(check(KvDType::kF32, vec));
  return kernel_source("argmax", arch, "kernels/model/argmax.cuh",
                       {{"FOVEA_ARGMAX", "1"}, {"FOVEA_VEC", std::to_string(vec)}});
}

Result<KernelSource> draw_source(const std::string& arch, std::uint32_t vec) {
  FOVEA_RETURN_IF_ERROR(check(KvDType::kF32, vec));
  return kernel_source("draw", arch, "kernels/model/draw.cuh",
                       {{"FOVEA_DRAW", "1"}, {"FOVEA_VEC", std::to_string(vec)}});
}

Result<KernelSource> all_reduce_source(const std::string& arch, KvDType dtype) {
  FOVEA_RETURN_IF_ERROR(check(dtype, 1));
  return kernel_source("all_reduce", arch, "kernels/model/all_reduce.cuh",
                       {{"FOVEA_ALL_REDUCE", "1"}, {"FOVEA_DTYPE", number(dtype)}});
}

std::uint32_t rope_vec(int head_dim, int rotary_dim) {
  for (const int vec : {1, 2, 4, 8}) {
    if (head_dim % (2 * vec) == 0 && head_dim / (2 * vec) <= 32 && rotary_dim % (2 * vec) == 0) {
      return static_cast<std::uint32_t>(vec);
    }
  }
  return 0;
}

}  // namespace fovea::jit
