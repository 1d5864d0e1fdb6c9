// Names of Highway's targets, and the cap on them.
#include "cpu/simd.h"

#include <hwy/highway.h>

#include "base/quote.h"
#include "base/status.h"

namespace fovea::cpu {
namespace {

struct Target {
  std::string_view name;
  std::int64_t bits;  // Highway's targets that the name stands for
};

// Best first. Highway's scalar fallback is EMU128 or, where the compiler breaks that, SCALAR.
constexpr Target kTargets[] = {{"avx512", HWY_AVX3}, {"avx2", HWY_AVX2}, {"scalar", HWY_EMU128 | HWY_SCALAR}};

std::int64_t machine_targets() {
  static const std::int64_t targets = hwy::SupportedTargets() | HWY_EMU128 | HWY_SCALAR;
  return targets;
}

}  // namespace

std::vector<std::string_view> simd_targets() {
  std::vector<std::string_view> names;
  for (const Target& target : kTargets) {
    if (machine_targets() & target.bits) names.push_back(target.name);
  }
  return names;
}

Status set_simd_cap(std::string_view name) {
  const std::int64_t machine = machine_targets();
  std::int64_t allowed = 0;
  bool known = name.empty();
  for (const Target& target : kTargets) {
    if (target.name == name) {
      known = true;
      if (!(machine & target.bits)) return unsupported("simd is {}, but this CPU lacks it", quote(name));
    }
    if (known) allowed |= machine & target.bits;
  }
  if (!known) return invalid_argument("simd is {}, expected avx512, avx2, scalar or nothing", quote(name));
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(allowed);
  return ok_status();
}

std::string_view simd_target() {
  const std::int64_t supported = hwy::SupportedTargets() | HWY_EMU128 | HWY_SCALAR;
  for (const Target& target : kTargets) {
    if (supported & target.bits) return target.name;
  }
  return "scalar";
}

}  // namespace fovea::cpu
