// Kernels that jit/ compiled, loaded on a device, and their launch. Backends keep a Function for each kernel that they
// launch, so that the hot path looks nothing up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cuda/handle.h"

namespace fovea::cuda {

struct LaunchConfig {
  std::uint32_t grid[3] = {1, 1, 1};   // CTAs
  std::uint32_t block[3] = {1, 1, 1};  // threads
  std::uint32_t smem_bytes = 0;        // dynamic
  std::uint32_t cluster[3] = {1, 1, 1};
  StreamHandle stream = nullptr;
  bool programmatic_serialization = false;  // may start before the kernel ahead of it has ended (PDL)
};

// A kernel of a module, which it keeps loaded. Copies are the same kernel.
class Function {
 public:
  Function() = default;

  void* handle() const { return function_; }
  const Device& device() const { return *device_; }
  // Lets launches ask for this much dynamic shared memory; beyond 48 KB it must be called before the launch.
  Status set_max_smem(std::size_t bytes) const;
  // Clusters of such a launch that the device holds at once; the grid's size is not read.
  Result<int> clusters_at_once(const LaunchConfig& config) const;

 private:
  friend class Module;
  std::shared_ptr<const void> module_;
  std::shared_ptr<const Device> device_;
  void* function_ = nullptr;
};

class Module {
 public:
  // A cubin for this device. kUnsupported when it was compiled for another one, kDataLoss when it is cut short.
  static Result<Module> load(const Device& device, std::span<const std::byte> cubin);
  // kNotFound: no kernel of this name (extern "C").
  Result<Function> function(const std::string& name) const;

 private:
  std::shared_ptr<const void> module_;
  std::shared_ptr<const Device> device_;
};

// args: a pointer to each parameter of the kernel, which are copied. The device's context must be current.
Status launch(const Function& function, const LaunchConfig& config, std::span<void* const> args);

}  // namespace fovea::cuda
