// Device memory and page-locked host memory, and copies between them. The device's context must be current for copies
// (ScopedContext). Used by backends, tests and benchmarks.
#pragma once

#include <cstddef>

#include "cuda/handle.h"

namespace fovea::cuda {

void free_device(const Driver& driver, void* memory);
void free_pinned(const Driver& driver, void* memory);

// Plain device memory, 256-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // zeroed: filled with zeros before this returns. Of 0 bytes: a buffer without memory.
  static Result<DeviceBuffer> create(const Device& device, std::size_t bytes, bool zeroed = false);
  // Filled with bytes of `value` before this returns.
  static Result<DeviceBuffer> filled(const Device& device, std::size_t bytes, unsigned char value);

  void* data() const { return handle_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(handle_.get());
  }
  std::size_t size_bytes() const { return bytes_; }

 private:
  Handle<free_device> handle_;
  std::size_t bytes_ = 0;
};

// Host memory that copies to and from a device need not stage.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> create(const Device& device, std::size_t bytes);

  std::byte* data() const { return static_cast<std::byte*>(handle_.get()); }
  std::size_t size_bytes() const { return bytes_; }

 private:
  Handle<free_pinned> handle_;
  std::size_t bytes_ = 0;
};

// Enqueued on the stream. Host memory that is not pinned is read before the call returns.
Status copy_to_device(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream);
Status copy_to_host(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream);
Status copy_on_device(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream);
Status set_bytes(const Device& device, void* to, unsigned char value, std::size_t bytes, StreamHandle stream);

}  // namespace fovea::cuda
