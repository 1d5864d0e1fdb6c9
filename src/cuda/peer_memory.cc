#include "cuda/peer_memory.h"

#include <cstring>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

CuAddress address_of(const void* memory) { return reinterpret_cast<CuAddress>(memory); }

}  // namespace

Result<SharedMemory> share(const Device& device, void* memory) {
  CuIpcHandle handle{};
  FOVEA_RETURN_IF_ERROR(
      device.driver().status(device.driver().api().ipc_get_handle(&handle, address_of(memory)), "cuIpcGetMemHandle"));
  SharedMemory shared{};
  std::memcpy(shared.bytes, handle.bytes, sizeof shared.bytes);
  return shared;
}

Result<void*> open_shared(const Device& device, const SharedMemory& memory) {
  constexpr unsigned kEnablePeerAccess = 1;
  CuIpcHandle handle{};
  std::memcpy(handle.bytes, memory.bytes, sizeof handle.bytes);
  CuAddress address = 0;
  FOVEA_RETURN_IF_ERROR(device.driver().status(
      device.driver().api().ipc_open_handle(&address, handle, kEnablePeerAccess), "cuIpcOpenMemHandle"));
  return reinterpret_cast<void*>(address);
}

void close_shared(const Device& device, void* memory) { device.driver().api().ipc_close_handle(address_of(memory)); }

Status copy_rows_on_device(const Device& device, void* to, std::size_t to_pitch, const void* from,
                           std::size_t from_pitch, std::size_t bytes, std::size_t rows, StreamHandle stream) {
  if (bytes == 0 || rows == 0) return ok_status();
  constexpr int kDeviceMemory = 2;
  CuCopyRows copy{};
  copy.from_type = copy.to_type = kDeviceMemory;
  copy.from = address_of(from);
  copy.to = address_of(to);
  copy.from_pitch = from_pitch;
  copy.to_pitch = to_pitch;
  copy.width = bytes;
  copy.height = rows;
  return device.driver().status(device.driver().api().copy_rows(&copy, stream), "cuMemcpy2DAsync");
}

}  // namespace fovea::cuda
