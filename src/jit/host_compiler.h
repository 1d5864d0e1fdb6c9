// Shared objects by their source: from this process, from the disk cache, or compiled now by the system's C++ compiler.
// The CPU's counterpart of compiler.h; used for variants by cpu/attention/variant_compiler.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/status.h"
#include "jit/compiler.h"
#include "jit/disk_cache.h"
#include "jit/once_map.h"

namespace fovea::jit {

// One translation unit of C++20. It may include every embedded source, device and host, by its path, and the headers of
// the system.
struct HostSource {
  std::string name;  // for messages
  std::string text;
  std::vector<std::string> flags;  // further options of the compiler: "-DNDEBUG"
};

// Loaded code. It stays until the process ends: its functions may be held anywhere.
class SharedObject {
 public:
  // The object whose file has these bytes, loaded without a file.
  static Result<std::shared_ptr<const SharedObject>> load(const std::string& name, std::span<const std::byte> bytes);
  // Address of an extern "C" name, or null.
  void* symbol(const char* name) const;

 private:
  explicit SharedObject(void* handle) : handle_(handle) {}
  void* handle_;
};
using SharedObjectPtr = std::shared_ptr<const SharedObject>;

// The compiler that FOVEA_CXX names, else the first of c++, g++, clang++ in PATH. kUnavailable says what to do.
Result<std::string> find_host_compiler();

class HostCompiler {
 public:
  // folder: see DiskCache.
  HostCompiler(std::string folder, std::uint64_t limit_bytes);
  // The one of the process, in the folder of Compiler::shared().
  static HostCompiler& shared();

  // kInvalidArgument with the compiler's messages, which point at lines of the source; kUnavailable when the object is
  // not cached and there is no compiler; kResourceExhausted when there is no room to compile. Any thread.
  Result<SharedObjectPtr> get(const HostSource& source, Origin* origin = nullptr);

 private:
  Result<SharedObjectPtr> make(const HostSource& source, const std::string& key, Origin* origin);

  DiskCache disk_;
  OnceMap<SharedObjectPtr> memory_;
};

}  // namespace fovea::jit
