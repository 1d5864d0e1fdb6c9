// Writes the translation unit that a variant becomes on the CPU.
#include "cpu/attention/variant_compiler.h"

#include "base/status.h"
#include "cpu/attention/attention.h"
#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

struct Target {
  std::string_view simd;  // of cpu/simd.h
  std::string_view flag;  // makes it the only one that is compiled
};

constexpr Target kTargets[] = {
    {"avx512", "-DHWY_BASELINE_TARGETS=HWY_AVX3"},
    {"avx2", "-DHWY_BASELINE_TARGETS=HWY_AVX2"},
};
// Whichever of Highway's two is not broken by the compiler.
constexpr Target kScalar = {"scalar", "-DHWY_BASELINE_TARGETS=(HWY_EMU128|HWY_SCALAR)"};

const Target& target_in_use() {
  for (const Target& target : kTargets) {
    if (target.simd == simd_target()) return target;
  }
  return kScalar;
}

}  // namespace

Result<AttentionKernels> compile_variant(const jit::VariantSpec& spec, jit::HostCompiler& compiler,
                                         jit::Origin* origin) {
  FOVEA_RETURN_IF_ERROR(check_variant(spec));
  const Target& target = target_in_use();
  jit::HostSource source;
  source.name = "variant " + spec.name;
  source.flags = {"-DNDEBUG", "-DHWY_COMPILE_ONLY_STATIC", "-DFOVEA_VARIANT_OBJECT", std::string(target.flag)};
  // One target and no dispatch: fovea::variant::Plain is the target's.
  source.text = fmt::format(
      R"(#if !__has_include(<hwy/highway.h>)
#error "the headers of Highway are missing: install libhwy-dev"
#endif
#include "cpu/attention/block.cc"
#include "cpu/attention/executor_inl.h"
HWY_BEFORE_NAMESPACE();
namespace fovea::variant {{
using namespace HWY_NAMESPACE;
}}
{variant}HWY_AFTER_NAMESPACE();
extern "C" __attribute__((visibility("default"))) void fovea_variant_kernels(void* format_ops,
                                                                             fovea::cpu::AttentionKernels* kernels) {{
  namespace target = fovea::cpu::HWY_NAMESPACE;
  target::format_ops = reinterpret_cast<decltype(target::format_ops)>(format_ops);
  *kernels = target::kernels_of<{type}>();
}}
)",
      fmt::arg("variant", jit::variant_source(spec, "::HWY_NAMESPACE", "fovea::cpu::HWY_NAMESPACE::SimdMath")),
      fmt::arg("type", jit::variant_type(spec, "::HWY_NAMESPACE")));
  Result<jit::SharedObjectPtr> code = compiler.get(source, origin);
  if (!code.ok()) {
    const bool no_highway = code.status().message().find("install libhwy-dev") != std::string::npos;
    return no_highway ? Status(StatusCode::kUnavailable, code.status().message()) : code.status();
  }
  using Entry = void (*)(void*, AttentionKernels*);
  const auto entry = reinterpret_cast<Entry>((*code)->symbol("fovea_variant_kernels"));
  if (entry == nullptr) return internal_error("{} was compiled without its entry point", source.name);
  AttentionKernels kernels;
  entry(format_ops_in_use(), &kernels);
  return kernels;
}

}  // namespace fovea::cpu
