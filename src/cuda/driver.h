// The CUDA driver, loaded when first asked for: the same binary runs where there is none. Used by everything in this
// folder, and by `fovea doctor`.
#pragma once

#include <string>

#include "fovea/status.h"

namespace fovea::cuda {

// A CUDA stream (CUstream, cudaStream_t); null is the default stream of the current context.
using StreamHandle = void*;

struct DriverApi;

class Driver {
 public:
  int version() const { return version_; }  // of the CUDA API it speaks: 13000 is 13.0
  int num_devices() const { return num_devices_; }
  const DriverApi& api() const { return *api_; }

  // What a result of the driver means. `what`: the call, for the message. kResourceExhausted for memory, kNotFound for
  // devices, else kInternal.
  Status status(int code, const char* what) const;

 private:
  friend Result<const Driver*> driver();
  static Result<const Driver*> load();

  int version_ = 0;
  int num_devices_ = 0;
  const DriverApi* api_ = nullptr;
};

// The driver of this machine, loaded once. kUnavailable: there is none, or it is too old, with what to do.
Result<const Driver*> driver();

}  // namespace fovea::cuda
