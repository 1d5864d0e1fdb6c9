// The CUDA driver, loaded when first asked for: the same binary runs where there is none. Used by everything in this
// folder, and by `fovea doctor`.
#pragma once

#include <memory>
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

  const std::string& path() const { return path_; }  // of the library

  // What a result of the driver means. `what`: the call, for the message. kResourceExhausted for memory, kNotFound for
  // devices, kUnavailable for a device that is taken, else kInternal.
  Status status(int code, const char* what) const {
    if (code == 0) return {};
    return explain(code, what);
  }

  // Loads the library of this name or path, for the life of the process. Everything but tests calls driver().
  static Result<const Driver*> load(const std::string& library);

 private:
  Status explain(int code, const char* what) const;

  std::string path_;
  int version_ = 0;
  int num_devices_ = 0;
  std::shared_ptr<const DriverApi> api_;
};

// The driver of this machine (or the one that FOVEA_LIBCUDA names), loaded once. kUnavailable: there is none, it is too
// old, or it sees no device, with what to do.
Result<const Driver*> driver();

}  // namespace fovea::cuda
