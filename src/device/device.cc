// The registry of devices. A device is one line here; each knows by itself whether the machine can run it.
#include "device/device.h"

#include "base/quote.h"
#include "base/status.h"
#include "device/cpu_device.h"

namespace fovea {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Device>> (*create)(const DeviceOptions& options);
};
constexpr Entry kDevices[] = {{"cpu", &create_cpu_device}};

}  // namespace

Status Device::update_page_stats(const std::int32_t*, std::int64_t, const abi::KvPoolView&, const abi::PageStatsView&) {
  return unsupported("the device {} selects no pages", name());
}

Status Device::select_pages(const TensorView&, float, const abi::KvPoolView&, const abi::PageStatsView&,
                            std::span<const SelectJob>) {
  return unsupported("the device {} selects no pages", name());
}

Result<std::unique_ptr<Device>> create_device(std::string_view name, const DeviceOptions& options) {
  std::string known;
  for (const Entry& entry : kDevices) {
    if (entry.name == name) return entry.create(options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
  return not_found("there is no device {}, expected one of: {}", quote(name), known);
}

}  // namespace fovea
