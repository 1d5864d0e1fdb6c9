#include "attention/cuda_kernels.h"

#include <map>
#include <mutex>
#include <tuple>

#include "base/per_process.h"
#include "base/status.h"
#include "jit/compiler.h"
#include "jit/nvrtc.h"

namespace fovea {
namespace {

// Never destroyed: the driver may be gone when static objects go.
struct Loaded {
  std::mutex mutex;
  std::map<std::tuple<int, std::string, std::string, std::string>, cuda::Function> functions;
  std::map<int, cuda::Device> devices;
};

}  // namespace

Result<cuda::Device> cuda_device(int index) {
  Loaded& l = per_process<Loaded>();
  const std::lock_guard lock(l.mutex);
  const auto found = l.devices.find(index);
  if (found != l.devices.end()) return found->second;
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda::Device::open(index));
  jit::set_newest_cuda(device.info().driver_version / 1000);
  l.devices.emplace(index, device);
  return device;
}

Result<cuda::Function> cuda_kernel(const cuda::Device& device, const jit::KernelSource& source,
                                   const std::string& entry) {
  Loaded& l = per_process<Loaded>();
  const auto key = std::tuple(device.index(), source.arch, entry, source.text);
  {
    const std::lock_guard lock(l.mutex);
    const auto found = l.functions.find(key);
    if (found != l.functions.end()) return found->second;
  }
  FOVEA_ASSIGN_OR_RETURN(const jit::CubinPtr cubin, jit::Compiler::shared().get(source));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Module module, cuda::Module::load(device, cubin->bytes));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function function, module.function(entry));
  const std::lock_guard lock(l.mutex);
  return l.functions.emplace(key, function).first->second;
}

}  // namespace fovea
