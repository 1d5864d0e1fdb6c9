// An owned handle of the driver: destroyed with its device's context current. The base of the types of this folder.
#pragma once

#include <optional>
#include <utility>

#include "cuda/device.h"

namespace fovea::cuda {

// Destroy: a function (const Driver&, void* handle).
template <auto Destroy>
class Handle {
 public:
  Handle() = default;
  Handle(const Device& device, void* handle) : device_(device), handle_(handle) {}
  Handle(Handle&& other) noexcept : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::move(other.device_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  void* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  const Device& device() const { return *device_; }  // not of an empty handle

 private:
  void reset() {
    if (handle_ == nullptr) return;
    const ScopedContext context(*device_);
    Destroy(device_->driver(), handle_);
    handle_ = nullptr;
  }

  std::optional<Device> device_;
  void* handle_ = nullptr;
};

}  // namespace fovea::cuda
