// The instantiations of the attention kernels that run in the emulator (testing/simt): each is a configuration as the
// agreement tests have them, and a kernel that its options allow. Read by the generator of their sources and by the
// tests.
#pragma once

#include <string>
#include <vector>

#include "core/plan/planner.h"
#include "jit/kernel_source.h"
#include "tests/gpu/agreement.h"
#include "tune/plan_choice.h"

namespace fovea::emulator_test {

struct Instantiation {
  std::string name;  // a C identifier; its translation unit's
  tune::PlanKernel kernel = tune::PlanKernel::kGeneral;
  bool shared = false;  // that of its plans which share runs (prefix_forest)
  std::string arch = "sm_90a";
  gpu_test::Configuration config;
};

const std::vector<Instantiation>& instantiations();
const Instantiation& find_instantiation(const std::string& name);

// SMs of the device that is emulated: few, so that parts of pairs meet.
inline constexpr int kEmulatedSms = 3;

struct Built {
  tune::AttentionChoice choice;
  jit::KernelSource source;
};
// What the product would compile and launch on that device.
Result<Built> build(const Instantiation& instantiation);

}  // namespace fovea::emulator_test
