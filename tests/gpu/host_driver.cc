// The fake driver as a library that `fovea serve --device cuda:0` may load in place of a GPU's (FOVEA_LIBCUDA): its
// kernels compute the embedded model on the host (host_kernels.h). Used by tests of servers.
#include "tests/gpu/host_kernels.h"

namespace {

[[maybe_unused]] const bool kReady = [] {
  fovea::cuda::fake::State& state = fovea::cuda::fake::state();
  state.any_kernel = true;  // such as sums of ranks through each other's memory, which they have not
  state.num_devices = 2;
  state.memory_bytes = std::size_t{5} << 28;
  fovea::host_kernels::install(128, fovea::VariantId::kPlain, fovea::abi::GateKind::kSilu);
  fovea::cuda::fake::take_faults_from_environment();
  return true;
}();

}  // namespace
