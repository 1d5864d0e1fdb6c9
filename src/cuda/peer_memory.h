// Device memory that several GPUs of this machine reach, each from a process of its own, and copies of rows. The
// device's context must be current. Used by device/cuda where ranks compute a model together.
#pragma once

#include <cstddef>

#include "cuda/device.h"

namespace fovea::cuda {

struct SharedMemory {
  char bytes[64];
};
// memory: of a DeviceBuffer, whole.
Result<SharedMemory> share(const Device& device, void* memory);
// Where another process finds it; whatever device it is of.
Result<void*> open_shared(const Device& device, const SharedMemory& memory);
void close_shared(const Device& device, void* memory);

// Enqueued: `rows` rows of so many bytes, from one pitch to another.
Status copy_rows_on_device(const Device& device, void* to, std::size_t to_pitch, const void* from,
                           std::size_t from_pitch, std::size_t bytes, std::size_t rows, StreamHandle stream);

}  // namespace fovea::cuda
