// A CUDA device and its primary context, the one that the CUDA runtime (and PyTorch) uses. Opened by backends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "fovea/status.h"

namespace fovea::cuda {

struct DeviceInfo {
  std::string name;
  int major = 0;  // of the compute capability: 9.0 is Hopper
  int minor = 0;
  int num_sms = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t smem_optin_bytes = 0;  // shared memory that one CTA may ask for
  std::int64_t memory_bytes = 0;
  int driver_version = 0;  // 13000 is CUDA 13.0

  // What kernels are compiled for: "sm_90a" on Hopper, else "sm_80", "sm_89", ..
  std::string arch() const;
};

// Copies share the context, which is kept until the last one is gone.
class Device {
 public:
  // kUnavailable: no driver. kNotFound: no device of this number, with how many there are.
  static Result<Device> open(int index);

  int index() const;
  const DeviceInfo& info() const;
  const Driver& driver() const;
  void* context() const;  // CUcontext
  // Free bytes of the device's memory now.
  Result<std::size_t> memory_available() const;
  // Until everything enqueued on the device is done.
  Status synchronize() const;

 private:
  struct State;
  explicit Device(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// Makes the device's context current on this thread for as long as it lives. Every call of this folder that takes a
// stream or memory needs it. Costs one call of the driver where the context is current already.
class ScopedContext {
 public:
  explicit ScopedContext(const Device& device);
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext();

  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  Status status_;
};

// Lets this thread allocate and free for as long as it lives while any stream of the process captures a graph; the
// driver would spoil the capturing of a stream in global mode else.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture();

 private:
  const Driver& driver_;
  int mode_;
};

}  // namespace fovea::cuda
