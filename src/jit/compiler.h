// Kernels by their source: from this process, from the disk cache, or compiled now by NVRTC. Knows no GPU. Called by
// backends when they are created, and by `fovea warmup`; never on a hot path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fovea/status.h"
#include "jit/disk_cache.h"
#include "jit/kernel_source.h"
#include "jit/nvrtc.h"
#include "jit/once_map.h"

namespace fovea::jit {

// Where a kernel came from.
enum class Origin : std::uint8_t { kMemory, kDisk, kCompiled };
std::string_view origin_name(Origin origin);  // "memory", "disk", "compiled"

class Compiler {
 public:
  // folder: see DiskCache.
  Compiler(std::string folder, std::uint64_t limit_bytes);
  // The one of the process, with the folder and the limit of the environment (FOVEA_CACHE_DIR, FOVEA_CACHE_LIMIT_MIB).
  static Compiler& shared();

  // kInvalidArgument with the compiler's log, which points at lines of the source; kUnavailable when the kernel is not
  // cached and there is no NVRTC. Any thread; a kernel that several threads ask for is compiled once.
  Result<CubinPtr> get(const KernelSource& source, Origin* origin = nullptr);

  // Whether the disk cache has the kernel, for the compiler that is there, or of one that the driver fits where there
  // is none.
  bool is_stored(const KernelSource& source);

  const std::string& folder() const { return disk_.folder(); }
  // Kernels that this process asked for, each counted once.
  std::size_t num_kernels() const { return memory_.size(); }

 private:
  static Result<std::string> tool(const Result<NvrtcPlace>& place);
  std::optional<CacheEntry> find(const std::string& key, const std::string& made_by);
  Result<CubinPtr> make(const KernelSource& source, const std::string& key, Origin* origin);

  DiskCache disk_;
  OnceMap<CubinPtr> memory_;
};

// The limit that FOVEA_CACHE_LIMIT_MIB sets; the default where it is not a number.
std::uint64_t cache_limit_bytes();

}  // namespace fovea::jit
