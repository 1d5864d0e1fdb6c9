// NVIDIA's cuBLASLt, loaded when first needed. Used by matmul.h and `fovea doctor`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "fovea/status.h"

namespace fovea::cuda {

struct CublasLtFunctions;

// The library.
class CublasLt {
 public:
  // Loads it, once a process: what FOVEA_CUBLASLT names (a file or a folder), else what the dynamic linker or
  // base/library_search.h finds. kUnavailable says what to do.
  static Result<const CublasLt*> load();

  const std::string& path() const { return path_; }
  std::string version() const;  // "13.1.0"
  const CublasLtFunctions& functions() const { return *functions_; }
  // What a result of the library means; `what`: the call.
  Status status(int code, const char* what) const;

 private:
  static Result<const CublasLt*> open(const std::string& path);

  std::string path_;
  std::size_t version_ = 0;
  std::shared_ptr<const CublasLtFunctions> functions_;
};

}  // namespace fovea::cuda
