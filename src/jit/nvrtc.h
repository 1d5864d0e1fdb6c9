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

// Looks in: FOVEA_NVRTC (a file or a folder; nothing else then), LD_LIBRARY_PATH, the system's library folders,
// /usr/local/cuda*/lib64, and the wheel nvidia-cuda-nvrtc in VIRTUAL_ENV or in a .venv above the program. kUnavailable
// says what to do.
Result<NvrtcPlace> find_nvrtc();

class Nvrtc {
 public:
  // Loads what find_nvrtc() found, once a process. Any thread.
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
