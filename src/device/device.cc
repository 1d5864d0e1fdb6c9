// The names of devices. Each device knows by itself whether the machine can run it.
#include "device/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "device/cpu_device.h"
#include "device/cuda/cuda_device.h"

namespace fovea {
namespace {

// Whoever leaves the choice to us hears of it where warnings are heard: commands by default.
void say_choice(const std::string& text) {
  if (log_level() <= LogLevel::kWarning) log_message(LogLevel::kInfo, "device auto: " + text);
}

Result<std::unique_ptr<Device>> create_best_device(const DeviceOptions& options) {
  Result<std::unique_ptr<Device>> device = create_cuda_device(0, options);
  if (device.ok()) {
    say_choice((*device)->description());
    return device;
  }
  say_choice("cpu, because " + device.status().message());
  return create_cpu_device(options);
}

}  // namespace

Status Linear::forward_fused(const TensorView&, const TensorView&) {
  return unsupported("a product of this device is computed alone");
}
Status Linear::forward_add(const TensorView&, const TensorView&) {
  return unsupported("a product of this device is not added");
}

Status Device::reserve_upload(std::size_t) { return ok_status(); }

Result<std::shared_ptr<void>> Device::allocate_host(std::size_t bytes) {
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) return resource_exhausted("{} bytes of host memory: none left", bytes);
  return std::shared_ptr<void>(memory, std::free);
}

Status Device::copy_to_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return ok_status();
}

Status Device::copy_from_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return ok_status();
}

Status Device::argmax(const TensorView&, const TensorView&) {
  return unsupported("logits of the device {} are read as they lie", name());
}

Status Device::draw(const TensorView&, const abi::DrawRow*, const TensorView&) {
  return unsupported("logits of the device {} are read as they lie", name());
}

Status Device::replay(std::uint64_t, const std::function<Status()>& enqueue) { return enqueue(); }

Status Device::update_page_stats(const std::int32_t*, std::int64_t, const abi::KvPoolView&, const abi::PageStatsView&) {
  return unsupported("the device {} selects no pages", name());
}

Status Device::select_pages(const TensorView&, float, const abi::KvPoolView&, const abi::PageStatsView&,
                            std::span<const SelectJob>) {
  return unsupported("the device {} selects no pages", name());
}

Result<std::unique_ptr<Device>> create_device(std::string_view name, const DeviceOptions& options) {
  if (name == "auto") return create_best_device(options);
  const Result<DevicePlace> place = parse_device(std::string(name));
  if (!place.ok()) return not_found("there is no device {}, expected one of: cpu, cuda, cuda:N, auto", quote(name));
  if (place->kind == DeviceKind::kCuda) return create_cuda_device(place->index, options);
  return create_cpu_device(options);
}

}  // namespace fovea
