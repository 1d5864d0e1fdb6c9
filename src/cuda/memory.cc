// Allocates, copies and sets memory.
#include "cuda/memory.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

CuAddress address_of(const void* memory) { return reinterpret_cast<CuAddress>(memory); }

// In a current context; waits for it.
Status fill(const Device& device, const DeviceBuffer& buffer, unsigned char value) {
  const RelaxedCapture relaxed(device.driver());
  FOVEA_RETURN_IF_ERROR(set_bytes(device, buffer.data(), value, buffer.size_bytes(), nullptr));
  return device.driver().status(device.driver().api().stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

void free_device(const Driver& driver, void* memory) {
  const RelaxedCapture relaxed(driver);
  driver.api().memory_free(address_of(memory));
}
void free_pinned(const Driver& driver, void* memory) {
  const RelaxedCapture relaxed(driver);
  driver.api().host_free(memory);
}

Result<DeviceBuffer> DeviceBuffer::create(const Device& device, std::size_t bytes, bool zeroed) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  CuAddress address = 0;
  if (const Status s = driver.status(driver.api().memory_allocate(&address, bytes), "cuMemAlloc"); !s.ok()) {
    return Status(s.code(), fmt::format("{} bytes on cuda:{}: {}", bytes, device.index(), s.message()));
  }
  buffer.handle_ = {device, reinterpret_cast<void*>(address)};
  buffer.bytes_ = bytes;
  if (zeroed) FOVEA_RETURN_IF_ERROR(fill(device, buffer, 0));
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::filled(const Device& device, std::size_t bytes, unsigned char value) {
  FOVEA_ASSIGN_OR_RETURN(DeviceBuffer buffer, create(device, bytes));
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(fill(device, buffer, value));
  return buffer;
}

Result<PinnedBuffer> PinnedBuffer::create(const Device& device, std::size_t bytes) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  void* memory = nullptr;
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  if (const Status s = driver.status(driver.api().host_allocate(&memory, bytes, 0), "cuMemHostAlloc"); !s.ok()) {
    return Status(s.code(), fmt::format("{} bytes of page-locked host memory: {}", bytes, s.message()));
  }
  buffer.handle_ = {device, memory};
  buffer.bytes_ = bytes;
  return buffer;
}

Status copy_to_device(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return ok_status();
  return device.driver().status(device.driver().api().copy_to_device(address_of(to), from, bytes, stream),
                                "cuMemcpyHtoDAsync");
}

Status copy_to_host(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return ok_status();
  return device.driver().status(device.driver().api().copy_to_host(to, address_of(from), bytes, stream),
                                "cuMemcpyDtoHAsync");
}

Status copy_on_device(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return ok_status();
  return device.driver().status(device.driver().api().copy_on_device(address_of(to), address_of(from), bytes, stream),
                                "cuMemcpyDtoDAsync");
}

Status set_bytes(const Device& device, void* to, unsigned char value, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return ok_status();
  return device.driver().status(device.driver().api().set_bytes(address_of(to), value, bytes, stream),
                                "cuMemsetD8Async");
}

}  // namespace fovea::cuda
