// Loads the CUDA driver and says what its results mean.
#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

constexpr const char* kSystemDriver = "libcuda.so.1";
// 12.0: cuLaunchKernelEx and tensor maps.
constexpr int kOldest = 12000;

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

StatusCode kind_of(int code) {
  switch (code) {
    case kCuOutOfMemory: return StatusCode::kResourceExhausted;
    case kCuNoDevice:
    case kCuInvalidDevice: return StatusCode::kNotFound;
    case kCuDeviceUnavailable: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

// After these the driver refuses everything else that the process asks of the device.
bool is_lasting(int code) {
  return code == kCuIllegalAddress || code == kCuLaunchTimeout || code == kCuContextDestroyed || code == kCuAssert ||
         (code >= kCuHardwareStackError && code <= kCuLaunchFailed);
}

// Finds all functions; the name of the first that is missing, or null.
const char* find_functions(void* library, DriverApi* api) {
#define FOVEA_CUDA_FIND(member, symbol, parameters)                               \
  api->member = reinterpret_cast<decltype(api->member)>(dlsym(library, #symbol)); \
  if (api->member == nullptr) return #symbol;
  FOVEA_CUDA_FUNCTIONS(FOVEA_CUDA_FIND)
#undef FOVEA_CUDA_FIND
  return nullptr;
}

}  // namespace

Status Driver::explain(int code, const char* what) const {
  const char* name = nullptr;
  const char* text = nullptr;
  api_->get_error_name(code, &name);
  api_->get_error_string(code, &text);
  return make_status(kind_of(code), "{}: {} ({}){}", what, name != nullptr ? name : fmt::format("error {}", code),
                     text != nullptr ? text : "unknown to the driver",
                     !is_lasting(code) ? ""
                     : code == kCuLaunchFailed
                         ? "; a kernel before this call failed (an attention kernel with checks does so where it "
                           "waited ten seconds), and the process must start anew to use the device again"
                         : "; a kernel before this call failed, and the process must start anew to use the device "
                           "again");
}

Result<const Driver*> Driver::load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    if (path != kSystemDriver) return unavailable(fmt::format("no CUDA driver is loaded from {}: {}", path, why));
    return unavailable(
        "there is no CUDA driver on this machine (libcuda.so.1 was not found); install NVIDIA's driver, or "
        "use the device \"cpu\"");
  }
  auto api = std::make_shared<DriverApi>();
  auto driver = std::make_unique<Driver>();
  driver->path_ = path;
  driver->api_ = api;
  // The version first: of an old driver its age is worth more than the name of what it lacks.
  api->driver_get_version = reinterpret_cast<decltype(api->driver_get_version)>(dlsym(library, "cuDriverGetVersion"));
  if (api->driver_get_version == nullptr || api->driver_get_version(&driver->version_) != 0) {
    dlclose(library);
    return unavailable(fmt::format("{} is no CUDA driver: it does not tell its version", path));
  }
  const char* const missing = driver->version_ < kOldest ? nullptr : find_functions(library, api.get());
  if (driver->version_ < kOldest || missing != nullptr) {
    dlclose(library);
    return unavailable(fmt::format(
        "the CUDA driver of this machine ({}) speaks CUDA {}{}, expected {} or later; update NVIDIA's driver", path,
        version_text(driver->version_), missing != nullptr ? fmt::format(" and lacks {}", missing) : "",
        version_text(kOldest)));
  }
  int code = api->init(0);
  if (code == 0) code = api->device_get_count(&driver->num_devices_);
  if (code == kCuNoDevice || (code == 0 && driver->num_devices_ == 0)) {
    return unavailable(
        "the CUDA driver sees no device; look at nvidia-smi, CUDA_VISIBLE_DEVICES and the container's settings");
  }
  if (code != 0) {
    return unavailable(fmt::format(
        "the CUDA driver does not start: {}; look at nvidia-smi (after an update of the driver, restart the machine)",
        driver->explain(code, "cuInit").message()));
  }
  return driver.release();
}

Result<const Driver*> driver() {
  static const Result<const Driver*> loaded = [] {
    const std::string named = env_string(EnvVar::kLibcuda);
    return Driver::load(named.empty() ? kSystemDriver : named);
  }();
  static const pid_t loaded_by = ::getpid();
  if (loaded.ok() && loaded_by != ::getpid()) {
    return unavailable(
        "CUDA was started before this process was forked, which it does not survive; start processes by spawn, or fork "
        "before anything uses a CUDA device");
  }
  return loaded;
}

}  // namespace fovea::cuda
