// AlignedBuffer: zeroed, 64-byte aligned memory; large buffers ask the kernel for huge pages, so that streaming through
// weights does not stall on address translation. Used by operators and by the CPU backend's allocate().
#pragma once

#include <cstddef>
#include <utility>

namespace fovea::cpu {

class AlignedBuffer {
 public:
  // data() is null when the machine has not enough memory (or size_bytes is 0).
  explicit AlignedBuffer(std::size_t size_bytes);
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;  // as mapped
};

}  // namespace fovea::cpu
