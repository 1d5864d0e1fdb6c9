// Opens devices and makes their contexts current.
#include "cuda/device.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {

std::string DeviceInfo::arch() const { return fmt::format("sm_{}{}{}", major, minor, major == 9 ? "a" : ""); }

struct Device::State {
  const Driver* driver = nullptr;
  int index = 0;
  CuDevice device = 0;
  CuContext context = nullptr;
  DeviceInfo info;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (context != nullptr) driver->api().primary_context_release(device);
  }
};

Result<Device> Device::open(int index) {
  FOVEA_ASSIGN_OR_RETURN(const Driver* const driver, cuda::driver());
  if (index < 0 || index >= driver->num_devices()) {
    return not_found("there is no cuda:{}; this machine has cuda:0 to cuda:{}", index, driver->num_devices() - 1);
  }
  const DriverApi& api = driver->api();
  auto state = std::make_shared<State>();
  state->driver = driver;
  state->index = index;
  FOVEA_RETURN_IF_ERROR(driver->status(api.device_get(&state->device, index), "cuDeviceGet"));
  char name[256] = {};
  FOVEA_RETURN_IF_ERROR(driver->status(api.device_get_name(name, sizeof name - 1, state->device), "cuDeviceGetName"));
  DeviceInfo& info = state->info;
  info.name = name;
  info.driver_version = driver->version();
  const auto attribute = [&](CuDeviceAttribute which, auto& to) {
    int value = 0;
    const Status status =
        driver->status(api.device_get_attribute(&value, which, state->device), "cuDeviceGetAttribute");
    to = value;
    return status;
  };
  FOVEA_RETURN_IF_ERROR(attribute(kCuComputeMajor, info.major));
  FOVEA_RETURN_IF_ERROR(attribute(kCuComputeMinor, info.minor));
  FOVEA_RETURN_IF_ERROR(attribute(kCuMultiprocessorCount, info.num_sms));
  FOVEA_RETURN_IF_ERROR(attribute(kCuL2CacheSize, info.l2_bytes));
  FOVEA_RETURN_IF_ERROR(attribute(kCuSharedPerBlockOptin, info.smem_optin_bytes));
  std::size_t memory = 0;
  FOVEA_RETURN_IF_ERROR(driver->status(api.device_total_memory(&memory, state->device), "cuDeviceTotalMem"));
  info.memory_bytes = static_cast<std::int64_t>(memory);
  FOVEA_RETURN_IF_ERROR(
      driver->status(api.primary_context_retain(&state->context, state->device), "cuDevicePrimaryCtxRetain"));
  return Device(std::move(state));
}

int Device::index() const { return state_->index; }
const DeviceInfo& Device::info() const { return state_->info; }
const Driver& Device::driver() const { return *state_->driver; }
void* Device::context() const { return state_->context; }

Result<std::size_t> Device::memory_available() const {
  const ScopedContext context(*this);
  FOVEA_RETURN_IF_ERROR(context.status());
  std::size_t available = 0;
  std::size_t total = 0;
  FOVEA_RETURN_IF_ERROR(driver().status(driver().api().memory_get_info(&available, &total), "cuMemGetInfo"));
  return available;
}

Status Device::synchronize() const {
  const ScopedContext context(*this);
  FOVEA_RETURN_IF_ERROR(context.status());
  return driver().status(driver().api().context_synchronize(), "cuCtxSynchronize");
}

ScopedContext::ScopedContext(const Device& device) : driver_(device.driver()) {
  CuContext current = nullptr;
  if (driver_.api().context_get_current(&current) == 0 && current == device.context()) return;
  status_ = driver_.status(driver_.api().context_push(device.context()), "cuCtxPushCurrent");
  pushed_ = status_.ok();
}

ScopedContext::~ScopedContext() {
  CuContext popped = nullptr;
  if (pushed_) driver_.api().context_pop(&popped);
}

RelaxedCapture::RelaxedCapture(const Driver& driver) : driver_(driver), mode_(kCuCaptureRelaxed) {
  driver_.api().exchange_capture_mode(&mode_);
}

RelaxedCapture::~RelaxedCapture() { driver_.api().exchange_capture_mode(&mode_); }

}  // namespace fovea::cuda
