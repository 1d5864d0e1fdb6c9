// The rows of `fovea doctor` about GPUs: what was found, what is missing, what to do.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "console.h"
#include "cuda/cublaslt.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "jit/nvrtc.h"
#include "machine/findings.h"

namespace fovea::app {
namespace {

// Compute capability 8.0 is the oldest that kernels are written for.
constexpr int kOldestMajor = 8;

Finding driver_finding() {
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (driver.ok()) {
    const int version = (*driver)->version();
    return {"CUDA driver", fmt::format("{}.{}", version / 1000, version % 1000 / 10), (*driver)->path()};
  }
  const bool in_container =
      std::filesystem::exists("/dev/nvidiactl") || std::getenv("NVIDIA_VISIBLE_DEVICES") != nullptr;
  return {"CUDA driver", "no",
          driver.status().message() +
              (in_container ? "; NVIDIA's device is here: a container must be started with the driver's libraries "
                              "(--gpus all, NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
                            : "; the CPU backend runs everything")};
}

Finding device_finding(int index) {
  const std::string what = fmt::format("cuda:{}", index);
  const Result<cuda::Device> device = cuda::Device::open(index);
  if (!device.ok()) return {what, "no", device.status().message()};
  const cuda::DeviceInfo& info = device->info();
  const Result<std::size_t> available = device->memory_available();
  const std::string text =
      fmt::format("{}, {}, {} SMs, {} with {} free", info.name, info.arch(), info.num_sms,
                  format_bytes(static_cast<double>(info.memory_bytes)),
                  available.ok() ? format_bytes(static_cast<double>(*available)) : std::string("an unknown part"));
  if (info.major < kOldestMajor) return {what, "no", fmt::format("{}; expected sm_{}0 or later", text, kOldestMajor)};
  return {what, "yes", text + "; for attention (serve and generate run on the CPU)"};
}

Finding nvrtc_finding() {
  const Result<jit::NvrtcPlace> place = jit::find_nvrtc();
  if (!place.ok()) return {"NVRTC", "no", place.status().message()};
  const Result<const jit::Nvrtc*> loaded = jit::Nvrtc::load();
  if (!loaded.ok()) return {"NVRTC", "broken", loaded.status().message()};
  const std::string version = (*loaded)->version();
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (driver.ok() && std::atoi(version.c_str()) > (*driver)->version() / 1000) {
    return {"NVRTC", version,
            fmt::format("{} is newer than the driver, which may refuse its kernels; update the driver, or let "
                        "FOVEA_NVRTC name version {}",
                        place->path, (*driver)->version() / 1000)};
  }
  return {"NVRTC", version, place->path};
}

Finding cublaslt_finding() {
  const Result<const cuda::CublasLt*> library = cuda::CublasLt::load();
  if (!library.ok()) return {"cuBLASLt", "no", library.status().message()};
  return {"cuBLASLt", (*library)->version(), (*library)->path()};
}

}  // namespace

std::vector<Finding> cuda_findings() {
  std::vector<Finding> findings = {driver_finding()};
  if (const Result<const cuda::Driver*> driver = cuda::driver(); driver.ok()) {
    for (int i = 0; i < (*driver)->num_devices(); ++i) findings.push_back(device_finding(i));
  }
  findings.push_back(nvrtc_finding());
  findings.push_back(cublaslt_finding());
  return findings;
}

}  // namespace fovea::app
