// The fake driver as a library that any program may load in place of a GPU's (FOVEA_LIBCUDA): its kernels do nothing,
// so that what a program would compile and launch is seen without a GPU. Used by tools/gpu_test.py --driver and by
// tests of servers.
#include "cuda/testing/fake_driver.h"

namespace {

[[maybe_unused]] const bool kReady = [] {
  fovea::cuda::fake::State& state = fovea::cuda::fake::state();
  state.any_kernel = true;
  state.memory_bytes = std::size_t{6} << 30;
  fovea::cuda::fake::take_faults_from_environment();
  return true;
}();

}  // namespace
