// Finds and loads cuBLASLt.
#include "cuda/cublaslt.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <vector>

#include "base/env.h"
#include "base/library_search.h"
#include "base/status.h"
#include "cuda/cublaslt_api.h"

namespace fovea::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibrary = "libcublasLt.so.";
constexpr std::size_t kOldest = 120000;  // 12.0.0

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// What to try, in this order. By its bare name the linker finds one that is loaded already, PyTorch's for example.
Result<std::vector<std::string>> candidates() {
  std::vector<std::string> paths;
  std::error_code error;
  const std::string named = env_string(EnvVar::kCublasLt);
  if (!named.empty() && !fs::is_directory(named, error)) return std::vector<std::string>{named};
  if (!named.empty()) {
    const auto found = newest_library(named, kLibrary);
    if (found) return std::vector<std::string>{found->path.string()};
    return unavailable(fmt::format("FOVEA_CUBLASLT is {}, a folder without libcublasLt.so.*", named));
  }
  for (const int major : {13, 12}) paths.push_back(std::string(kLibrary) + std::to_string(major));
  for (const fs::path& folder : library_folders()) {
    if (const auto found = newest_library(folder, kLibrary)) paths.push_back(found->path.string());
  }
  return paths;
}

// The name of the first function that is missing, or null.
const char* find_functions(void* library, CublasLtFunctions* functions) {
#define FOVEA_CUBLASLT_FIND(member, symbol, parameters)                                       \
  functions->member = reinterpret_cast<decltype(functions->member)>(dlsym(library, #symbol)); \
  if (functions->member == nullptr) return #symbol;
  FOVEA_CUBLASLT_FUNCTIONS(FOVEA_CUBLASLT_FIND)
  FOVEA_CUBLASLT_FIND(version, cublasLtGetVersion, )
  FOVEA_CUBLASLT_FIND(status_string, cublasLtGetStatusString, )
#undef FOVEA_CUBLASLT_FIND
  return nullptr;
}

}  // namespace

std::string CublasLt::version() const { return version_text(version_); }

Status CublasLt::status(int code, const char* what) const {
  if (code == 0) return ok_status();
  StatusCode kind = StatusCode::kInternal;
  if (code == kLtOutOfMemory) kind = StatusCode::kResourceExhausted;
  if (code == kLtNotInitialized) kind = StatusCode::kUnavailable;
  if (code == kLtArchMismatch || code == kLtNotSupported) kind = StatusCode::kUnsupported;
  return make_status(kind, "{}: {} (cuBLASLt {}, {})", what, functions_->status_string(code), version(), path_);
}

Result<const CublasLt*> CublasLt::open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return unavailable(fmt::format("cuBLASLt cannot be loaded: {}", dlerror()));
  auto functions = std::make_shared<CublasLtFunctions>();
  auto loaded = std::make_unique<CublasLt>();
  const char* const missing = find_functions(library, functions.get());
  if (missing == nullptr) loaded->version_ = functions->version();
  if (loaded->version_ < kOldest) {
    dlclose(library);
    return unavailable(fmt::format(
        "{} {}; expected cuBLASLt 12.0 or later, which FOVEA_CUBLASLT may name", path,
        missing != nullptr ? std::string("has no ") + missing : "is version " + version_text(loaded->version_)));
  }
  loaded->path_ = path;
  loaded->functions_ = std::move(functions);
  return loaded.release();
}

Result<const CublasLt*> CublasLt::load() {
  static std::mutex mutex;
  static const CublasLt* loaded = nullptr;  // for the life of the process
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, candidates());
  Status last;
  for (const std::string& path : paths) {
    auto result = open(path);
    if (result.ok()) return loaded = *result;
    last = result.status();
  }
  if (paths.size() == 1) return last;
  return unavailable(
      "cuBLASLt, which multiplies matrices on the GPU, was not found; install the CUDA toolkit or run `pip install "
      "nvidia-cublas`, and let FOVEA_CUBLASLT name its libcublasLt.so.* or the folder of it");
}

}  // namespace fovea::cuda
