// Macros of the kernels around attention.
#include "jit/cache_spec.h"

#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::jit {
namespace {

using abi::KvDType;

std::string number(KvDType type) { return std::to_string(static_cast<int>(type)); }

bool is_float(KvDType type) { return type == KvDType::kF32 || type == KvDType::kF16 || type == KvDType::kBF16; }

// runs: how many runs of vec elements head_dim must be a multiple of.
Status check_shape(int head_dim, std::uint32_t vec, std::uint32_t runs) {
  if (vec != 1 && vec != 2 && vec != 4 && vec != 8) {
    return invalid_argument("a run of {} elements; expected 1, 2, 4 or 8", vec);
  }
  if (head_dim < 1 || head_dim > 512 || static_cast<std::uint32_t>(head_dim) % (runs * vec) != 0) {
    return unsupported("head_dim is {}, expected a multiple of {} up to 512", head_dim, runs * vec);
  }
  return ok_status();
}

}  // namespace

Result<KernelSource> append_source(const AppendKernelSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check_shape(spec.head_dim, spec.vec, 2));
  if (!is_float(spec.q_dtype)) return unsupported("rows to append must be f32, f16 or bf16");
  const bool integers = spec.pool_dtype == KvDType::kI8 || spec.pool_dtype == KvDType::kI4;
  if (!is_float(spec.pool_dtype) && spec.pool_dtype != KvDType::kF8E4M3 && !integers) {
    return unsupported("rows can be appended to pools of f32, f16, bf16, fp8_e4m3, int8 and int4");
  }
  const bool scales = integers || spec.token_scales;
  if (scales && spec.rotate) {
    return unsupported(
        "pools with a scale a token and head take rows that positions rotated before; append without rotation");
  }
  if (spec.token_scales && !integers && spec.pool_dtype != KvDType::kF8E4M3) {
    return unsupported("a scale a token and head is for pools of fp8_e4m3, int8 and int4");
  }
  if (spec.rotated && (!integers || (spec.head_dim & (spec.head_dim - 1)) != 0)) {
    return unsupported("rotated pools are int8 or int4 with a head_dim that is a power of two, here it is {}",
                       spec.head_dim);
  }
  return kernel_source("append", spec.arch, scales ? "kernels/cache/append_quantized.cuh" : "kernels/cache/append.cuh",
                       {{"FOVEA_HEAD_DIM", std::to_string(spec.head_dim)},
                        {"FOVEA_Q_DTYPE", number(spec.q_dtype)},
                        {"FOVEA_KV_DTYPE", number(spec.pool_dtype)},
                        {"FOVEA_VEC", std::to_string(spec.vec)},
                        {"FOVEA_ROTATE", spec.rotate ? "1" : "0"},
                        {"FOVEA_ROTATED", spec.rotated ? "1" : "0"}});
}

Result<KernelSource> merge_source(const MergeKernelSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check_shape(spec.head_dim, spec.vec, 1));
  if (!is_float(spec.v_dtype) || !is_float(spec.out_dtype)) return unsupported("states must be f32, f16 or bf16");
  return kernel_source("merge_states", spec.arch, "kernels/cache/merge_states.cuh",
                       {{"FOVEA_HEAD_DIM", std::to_string(spec.head_dim)},
                        {"FOVEA_Q_DTYPE", number(spec.v_dtype)},
                        {"FOVEA_OUT_DTYPE", number(spec.out_dtype)},
                        {"FOVEA_VEC", std::to_string(spec.vec)}});
}

Result<KernelSource> read_source(const ReadKernelSpec& spec) {
  if (spec.threads < 32 || spec.threads > 1024 || spec.threads % 32 != 0 || (spec.stages > 0 && spec.threads > 992)) {
    return invalid_argument("{} threads; expected a multiple of 32 from 32 to 1024 (992 with bulk copies)",
                            spec.threads);
  }
  std::vector<std::pair<std::string, std::string>> macros = {{"FOVEA_READ_THREADS", std::to_string(spec.threads)}};
  if (spec.stages > 0) {
    FOVEA_ASSIGN_OR_RETURN(const int arch, kernel_arch(spec.arch));
    if (arch < 900) return unsupported("bulk copies need sm_90a, the architecture is {}", spec.arch);
    if (spec.tile_bytes < 1 || spec.tile_bytes % (spec.threads * 16) != 0) {
      return invalid_argument("tiles of {} bytes; expected a multiple of {}", spec.tile_bytes, spec.threads * 16);
    }
    macros.emplace_back("FOVEA_READ_STAGES", std::to_string(spec.stages));
    macros.emplace_back("FOVEA_READ_TILE", std::to_string(spec.tile_bytes));
  } else {
    if (spec.unroll < 1 || spec.unroll > 64) return invalid_argument("{} loads a tile, expected 1 to 64", spec.unroll);
    macros.emplace_back("FOVEA_READ_UNROLL", std::to_string(spec.unroll));
    if (spec.slabs) macros.emplace_back("FOVEA_READ_SLABS", "1");
  }
  return kernel_source("read_limit", spec.arch, "kernels/limits/read_limit.cuh", macros);
}

Result<KernelSource> select_source(const std::string& arch, KvDType q_dtype) {
  if (!is_float(q_dtype)) return unsupported("queries of a selection must be f32, f16 or bf16");
  return kernel_source("select", arch, "kernels/cache/select.cuh",
                       {{"FOVEA_SELECT", "1"}, {"FOVEA_Q_DTYPE", number(q_dtype)}});
}

Result<KernelSource> key_codes_source(const std::string& arch, KvDType dtype) {
  if (!is_float(dtype)) return unsupported("keys to make codes of must be f32, f16 or bf16");
  return kernel_source("key_codes", arch, "kernels/cache/codes.cuh",
                       {{"FOVEA_KEY_CODES", "1"}, {"FOVEA_Q_DTYPE", number(dtype)}});
}

Result<KernelSource> move_tokens_source(const std::string& arch) {
  return kernel_source("move_tokens", arch, "kernels/cache/move_tokens.cuh", {{"FOVEA_MOVE_TOKENS", "1"}});
}

Result<KernelSource> reschedule_source(const std::string& arch) {
  return kernel_source("reschedule", arch, "kernels/plan/reschedule.cuh", {{"FOVEA_RESCHEDULE", "1"}});
}

}  // namespace fovea::jit
