#include "cuda/driver.h"

#include <dlfcn.h>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

// 12.0: cuLaunchKernelEx and tensor maps.
constexpr int kOldest = 12000;

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

}  // namespace

Status Driver::status(int code, const char* what) const {
  if (code == 0) return ok_status();
  const char* name = nullptr;
  const char* text = nullptr;
  api_->get_error_name(code, &name);
  api_->get_error_string(code, &text);
  StatusCode kind = StatusCode::kInternal;
  if (code == kCuOutOfMemory) kind = StatusCode::kResourceExhausted;
  if (code == kCuNoDevice || code == kCuInvalidDevice) kind = StatusCode::kNotFound;
  return make_status(kind, "{}: {} ({})", what, name != nullptr ? name : fmt::format("error {}", code),
                     text != nullptr ? text : "unknown to the driver");
}

Result<const Driver*> Driver::load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unavailable(
        "there is no CUDA driver on this machine (libcuda.so.1 was not found); install NVIDIA's driver, or "
        "use the device \"cpu\"");
  }
  static DriverApi api;
  static Driver driver;
  driver.api_ = &api;
  const auto find = [library](const char* symbol) { return dlsym(library, symbol); };
  api.driver_get_version = reinterpret_cast<decltype(api.driver_get_version)>(find("cuDriverGetVersion"));
  if (api.driver_get_version == nullptr || api.driver_get_version(&driver.version_) != 0 || driver.version_ < kOldest) {
    return unavailable(
        fmt::format("the CUDA driver of this machine speaks CUDA {}.{}, expected {}.{} or later; update "
                    "NVIDIA's driver",
                    driver.version_ / 1000, driver.version_ % 1000 / 10, kOldest / 1000, kOldest % 1000 / 10));
  }
#define FOVEA_CUDA_FIND(member, symbol, parameters)                                   \
  api.member = reinterpret_cast<decltype(api.member)>(find(#symbol));                 \
  if (api.member == nullptr) {                                                        \
    return unavailable("the CUDA driver has no " #symbol "; update NVIDIA's driver"); \
  }
  FOVEA_CUDA_FUNCTIONS(FOVEA_CUDA_FIND)
#undef FOVEA_CUDA_FIND
  int code = api.init(0);
  if (code == 0) code = api.device_get_count(&driver.num_devices_);
  if (code == kCuNoDevice || (code == 0 && driver.num_devices_ == 0)) {
    return unavailable("the CUDA driver sees no device; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  if (code != 0) return unavailable(driver.status(code, "cuInit").message());
  return &driver;
}

Result<const Driver*> driver() {
  static const Result<const Driver*> loaded = Driver::load();
  return loaded;
}

}  // namespace fovea::cuda
