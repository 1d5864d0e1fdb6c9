// NVIDIA's run-time compiler, loaded when first needed: nothing of CUDA is needed to build or start, and a kernel that
// is in the cache needs no compiler at all. Used by compiler.h and `fovea doctor`.
#pragma once

#include <string>

#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea::jit {

// Where a library is, found without loading it.
struct NvrtcPlace {
  std::string path;     // of libnvrtc.so.*
  std::string version;  // "13.0", from the names of the files; empty when they do not tell
};

// The newest CUDA whose kernels the driver loads: 12 of one that speaks 12.x. A newer NVRTC, and kernels that one left
// in the cache, are passed over. Told by whoever opens a device; 0, untold: any.
void set_newest_cuda(int major);
int newest_cuda();
// That this NVRTC is newer than the driver.
Status too_new(const std::string& path, int major);

// Looks in: FOVEA_NVRTC (a file or a folder; nothing else then), LD_LIBRARY_PATH, the system's library folders,
// /usr/local/cuda*/lib64, the wheel nvidia-cuda-nvrtc in VIRTUAL_ENV or in a .venv above the program, and at last what
// the process has loaded already. kUnavailable says what to do.
Result<NvrtcPlace> find_nvrtc();

class Nvrtc {
 public:
  // Loads what find_nvrtc() found, once a process and driver. Any thread.
  static Result<const Nvrtc*> load();

  const std::string& path() const { return path_; }
  std::string version() const;  // "13.0"

  // log: what the compiler said, also when it failed. kInvalidArgument with the log for a wrong source, kUnsupported
  // where this version does not know the architecture. Any thread.
  Result<std::vector<std::byte>> compile(const KernelSource& source, std::string* log) const;

 private:
  struct Functions;
  Nvrtc() = default;
  static Result<const Nvrtc*> open(const NvrtcPlace& place);
  Status explain(int code, const KernelSource& source, const std::string& log) const;

  std::string path_;
  int major_ = 0;
  int minor_ = 0;
  const Functions* functions_ = nullptr;
};

}  // namespace fovea::jit
