// The table of jit/ladder_spec.h; sizes are those of kernels/ladder.
#include "jit/ladder_spec.h"

#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::jit {
namespace {

constexpr std::uint32_t kTileBytes = 128 * 128 * 2, kBarrierBytes = 128;

constexpr LadderKernel kKernels[] = {
    {"naive", "kernels/ladder/naive.cuh", "fovea_ladder_naive", false, false, 128, 128, 0},
    {"tensor cores", "kernels/ladder/tensor_cores.cuh", "fovea_ladder_tensor_cores", false, false, 64, 128,
     5 * kTileBytes / 2},
    {"wgmma", "kernels/ladder/wgmma.cuh", "fovea_ladder_wgmma", false, true, 128, 256, 3 * kTileBytes + kBarrierBytes},
    {"specialized", "kernels/ladder/specialized.cuh", "fovea_ladder_specialized", false, true, 128, 384,
     5 * kTileBytes + kBarrierBytes},
    {"overlapped", "kernels/ladder/specialized.cuh", "fovea_ladder_specialized", true, true, 128, 384,
     5 * kTileBytes + kBarrierBytes},
};

}  // namespace

std::span<const LadderKernel> ladder_kernels() { return kKernels; }

Result<KernelSource> ladder_source(const LadderKernel& kernel, const std::string& arch) {
  FOVEA_ASSIGN_OR_RETURN(const int number, kernel_arch(arch));
  if (kernel.maps && number < 900) {
    return unsupported("the kernel \"{}\" of the ladder needs sm_90a, the architecture is {}", kernel.name, arch);
  }
  return kernel_source(kernel.entry, arch, kernel.header, {{"FOVEA_LADDER_OVERLAPPED", kernel.overlapped ? "1" : "0"}});
}

}  // namespace fovea::jit
