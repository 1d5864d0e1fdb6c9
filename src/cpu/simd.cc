// Names of Highway's targets, and the cap on them.
#include "cpu/simd.h"

#include <hwy/highway.h>

#include <atomic>

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

// Those that set_simd_cap allows. Kept here because Highway asks the CPU each time: under a hypervisor, which answers
// in its stead, that takes 14 us, and each product of bf16 asks.
std::atomic<std::int64_t>& targets_in_use() {
  static std::atomic<std::int64_t> targets = machine_targets();
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
  targets_in_use() = allowed;
  return ok_status();
}

std::string_view simd_target() {
  const std::int64_t targets = targets_in_use().load(std::memory_order_relaxed);
  for (const Target& target : kTargets) {
    if (targets & target.bits) return target.name;
  }
  return "scalar";
}

}  // namespace fovea::cpu
