// Writes the few lines of text that an instantiation is.
#include "jit/attention_spec.h"

#include <charconv>

#include "base/quote.h"
#include "base/status.h"
#include "jit/sources.h"

namespace fovea::jit {
namespace {

const char* dtype_text(abi::KvDType dtype) {
  switch (dtype) {
    case abi::KvDType::kF32: return "f32";
    case abi::KvDType::kF16: return "f16";
    case abi::KvDType::kBF16: return "bf16";
    case abi::KvDType::kF8E4M3: return "fp8";
    case abi::KvDType::kI8: return "int8";
    case abi::KvDType::kI4: return "int4";
  }
  return "?";
}

Status check_spec(const AttentionKernelSpec& spec) {
  if (spec.head_dim < 32 || spec.head_dim > 256 || spec.head_dim % 16 != 0) {
    return unsupported("head_dim is {}, the attention kernel takes multiples of 16 from 32 to 256", spec.head_dim);
  }
  if (spec.q_dtype != abi::KvDType::kF16 && spec.q_dtype != abi::KvDType::kBF16) {
    return unsupported("queries are {}, the attention kernel takes f16 and bf16", dtype_text(spec.q_dtype));
  }
  if (spec.kv_dtype != abi::KvDType::kF16 && spec.kv_dtype != abi::KvDType::kBF16 &&
      spec.kv_dtype != abi::KvDType::kF8E4M3 && spec.kv_dtype != abi::KvDType::kI8 &&
      spec.kv_dtype != abi::KvDType::kI4) {
    return unsupported("KV is stored as {}, the attention kernel takes f16, bf16, fp8_e4m3, int8 and int4",
                       dtype_text(spec.kv_dtype));
  }
  const bool integers = spec.kv_dtype == abi::KvDType::kI8 || spec.kv_dtype == abi::KvDType::kI4;
  if (spec.rotated && (!integers || (spec.head_dim & (spec.head_dim - 1)) != 0)) {
    return unsupported("rotated KV is int8 or int4 with a head_dim that is a power of two, not {} with {}",
                       dtype_text(spec.kv_dtype), spec.head_dim);
  }
  if (spec.token_scales && !integers && spec.kv_dtype != abi::KvDType::kF8E4M3) {
    return unsupported("KV stored as {} has no scales", dtype_text(spec.kv_dtype));
  }
  return ok_status();
}

}  // namespace

Result<int> kernel_arch(const std::string& arch) {
  int number = 0;
  constexpr std::string_view kPrefix = "sm_";
  if (arch.starts_with(kPrefix)) std::from_chars(arch.data() + kPrefix.size(), arch.data() + arch.size(), number);
  if (number < 80) {
    return unsupported("the architecture is {}, expected sm_80 or later (sm_80, sm_89, sm_90a, ..)", quote(arch));
  }
  return arch == "sm_90a" ? 900 : 800;
}

Result<KernelSource> kernel_source(const std::string& name, const std::string& arch, const std::string& header,
                                   const std::vector<std::pair<std::string, std::string>>& macros) {
  FOVEA_ASSIGN_OR_RETURN(const int number, kernel_arch(arch));
  if (!has_source(device_sources(), header)) return not_found("this build has no kernel source {}", header);
  KernelSource source;
  source.name = name;
  source.arch = arch;
  source.text = fmt::format("#define FOVEA_ARCH {}\n", number);
  for (const auto& [macro, value] : macros) source.text += fmt::format("#define {} {}\n", macro, value);
  source.text += fmt::format("#include \"{}\"\n", header);
  return source;
}

Result<KernelSource> attention_source(const AttentionKernelSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check_spec(spec));
  FOVEA_RETURN_IF_ERROR(check_variant(spec.variant));
  std::vector<std::pair<std::string, std::string>> macros = {
      {"FOVEA_HEAD_DIM", std::to_string(spec.head_dim)},
      {"FOVEA_Q_DTYPE", std::to_string(static_cast<int>(spec.q_dtype))},
      {"FOVEA_KV_DTYPE", std::to_string(static_cast<int>(spec.kv_dtype))},
      {"FOVEA_LOADER", std::to_string(static_cast<int>(spec.loader))},
      {"FOVEA_BOX_TOKENS", std::to_string(spec.box_tokens)},
      {"FOVEA_CHECKED", spec.checked ? "1" : "0"},
      {"FOVEA_VARIANT", variant_type(spec.variant, "")},
  };
  if (spec.token_scales && spec.kv_dtype == abi::KvDType::kF8E4M3) macros.emplace_back("FOVEA_TOKEN_SCALES", "1");
  if (spec.rotated) macros.emplace_back("FOVEA_ROTATED", "1");
  for (const auto& [macro, value] : spec.tuning) macros.emplace_back(macro, std::to_string(value));
  const std::string name = fmt::format("{}-{}-d{}-{}-kv{}", spec.kind, spec.variant.name, spec.head_dim,
                                       dtype_text(spec.q_dtype), dtype_text(spec.kv_dtype));
  FOVEA_ASSIGN_OR_RETURN(KernelSource source, kernel_source(name, spec.arch, spec.header, macros));
  // First, so that the variant cannot see the kernel's names.
  source.text = "#include \"variant/variant.h\"\n" + variant_source(spec.variant, "", "ScalarMath") + "#line 1 \"" +
                name + "\"\n" + source.text;
  return source;
}

}  // namespace fovea::jit
