// Loads cubins and launches what is in them.
#include "cuda/module.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

// What is read of an ELF64 header.
constexpr std::size_t kElfHeaderBytes = 64;
constexpr std::size_t kElfSectionTable = 40;  // u64: where the section table is
constexpr std::size_t kElfSectionBytes = 58;  // u16: bytes of a section's entry
constexpr std::size_t kElfSectionCount = 60;  // u16

template <typename T>
std::uint64_t read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The driver takes no size and would read past the end of a file that was cut short; the section table is its last
// part.
bool is_whole_cubin(std::span<const std::byte> cubin) {
  if (cubin.size() < kElfHeaderBytes || std::memcmp(cubin.data(),
                                                    "\x7f"
                                                    "ELF",
                                                    4) != 0)
    return false;
  const std::uint64_t table = read_at<std::uint64_t>(cubin, kElfSectionTable);
  const std::uint64_t bytes =
      read_at<std::uint16_t>(cubin, kElfSectionBytes) * read_at<std::uint16_t>(cubin, kElfSectionCount);
  return table <= cubin.size() && bytes <= cubin.size() - table;
}

// The launch as the driver takes it.
struct DriverLaunch {
  explicit DriverLaunch(const LaunchConfig& c) {
    for (int i = 0; i < 3; ++i) {
      config.grid[i] = c.grid[i];
      config.block[i] = c.block[i];
    }
    config.shared_bytes = c.smem_bytes;
    config.stream = c.stream;
    config.attributes = attributes_;
    if (c.cluster[0] * c.cluster[1] * c.cluster[2] > 1) {
      CuLaunchAttribute& cluster = add(kCuLaunchClusterDimension);
      for (int i = 0; i < 3; ++i) cluster.value.cluster[i] = c.cluster[i];
    }
    if (c.programmatic_serialization) add(kCuLaunchProgrammaticSerialization).value.flag = 1;
  }
  DriverLaunch(const DriverLaunch&) = delete;
  DriverLaunch& operator=(const DriverLaunch&) = delete;

  CuLaunchConfig config{};

 private:
  CuLaunchAttribute& add(CuLaunchAttributeId id) {
    CuLaunchAttribute& attribute = attributes_[config.num_attributes++];
    attribute = {};
    attribute.id = id;
    return attribute;
  }
  CuLaunchAttribute attributes_[2];
};

void unload(const Driver& driver, void* module) { driver.api().module_unload(module); }

}  // namespace

Result<Module> Module::load(const Device& device, std::span<const std::byte> cubin) {
  if (!is_whole_cubin(cubin)) {
    return data_loss("a kernel of {} bytes is no whole cubin; the folder of compiled kernels may be damaged: remove it",
                     cubin.size());
  }
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const RelaxedCapture relaxed(device.driver());
  CuModule loaded = nullptr;
  const CuResult code = device.driver().api().module_load(&loaded, cubin.data());
  const Status status = device.driver().status(code, "cuModuleLoadData");
  if (code == kCuInvalidImage || code == kCuNoBinaryForDevice) {
    return unsupported("the kernel was not compiled for {} ({}): {}", device.info().name, device.info().arch(),
                       status.message());
  }
  FOVEA_RETURN_IF_ERROR(status);
  Module module;
  module.module_ = std::make_shared<Handle<unload>>(device, loaded);
  module.device_ = std::make_shared<Device>(device);
  // The raw handle is what function() needs; the aliasing pointer keeps the owner.
  module.module_ = std::shared_ptr<const void>(module.module_, loaded);
  return module;
}

Result<Function> Module::function(const std::string& name) const {
  const ScopedContext context(*device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  CuFunction found = nullptr;
  const Driver& driver = device_->driver();
  const Status status = driver.status(
      driver.api().module_get_function(&found, const_cast<void*>(module_.get()), name.c_str()), "cuModuleGetFunction");
  if (!status.ok()) return not_found("the module has no kernel {}: {}", name, status.message());
  Function function;
  function.module_ = module_;
  function.device_ = device_;
  function.function_ = found;
  return function;
}

Status Function::set_max_smem(std::size_t bytes) const {
  const ScopedContext context(*device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  if (bytes > static_cast<std::size_t>(device_->info().smem_optin_bytes)) {
    return unsupported("a kernel asks for {} bytes of shared memory, {} gives a CTA {}", bytes, device_->info().name,
                       device_->info().smem_optin_bytes);
  }
  const Driver& driver = device_->driver();
  return driver.status(
      driver.api().function_set_attribute(function_, kCuMaxDynamicSharedBytes, static_cast<int>(bytes)),
      "cuFuncSetAttribute");
}

Result<int> Function::clusters_at_once(const LaunchConfig& config) const {
  const ScopedContext context(*device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const Driver& driver = device_->driver();
  LaunchConfig one = config;
  std::copy_n(config.cluster, 3, one.grid);
  const DriverLaunch asked(one);
  int clusters = 0;
  FOVEA_RETURN_IF_ERROR(
      driver.status(driver.api().clusters(&clusters, function_, &asked.config), "cuOccupancyMaxActiveClusters"));
  return clusters;
}

namespace {

Status explain_launch(const Status& status, const LaunchConfig& c) {
  return Status(
      status.code(),
      fmt::format("{}: launching {} x {} x {} CTAs of {} x {} x {} threads with {} bytes of "
                  "dynamic shared memory{}{}",
                  status.message(), c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.smem_bytes,
                  c.cluster[0] * c.cluster[1] * c.cluster[2] > 1
                      ? fmt::format(", clusters of {} x {} x {}", c.cluster[0], c.cluster[1], c.cluster[2])
                      : "",
                  c.programmatic_serialization ? ", programmatic serialization" : ""));
}

}  // namespace

Status launch(const Function& function, const LaunchConfig& c, std::span<void* const> args) {
  if (function.handle() == nullptr) return invalid_argument("a kernel is launched that was never loaded");
  const DriverLaunch asked(c);
  const Driver& driver = function.device().driver();
  const CuResult code = driver.api().launch(&asked.config, function.handle(), const_cast<void**>(args.data()), nullptr);
  return code == 0 ? ok_status() : explain_launch(driver.status(code, "cuLaunchKernelEx"), c);
}

}  // namespace fovea::cuda
