// Finds libnvrtc by looking at files: loading 100 MB to learn a version would cost more than reading a kernel.
#include <filesystem>
#include <system_error>

#include "base/env.h"
#include "base/library_search.h"
#include "base/quote.h"
#include "base/status.h"
#include "jit/nvrtc.h"

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;

// The newest libnvrtc.so.N of a folder, and its version from the built-ins beside it (libnvrtc-builtins.so.N.M).
bool find_in(const fs::path& folder, NvrtcPlace* place) {
  const auto library = newest_library(folder, "libnvrtc.so.");
  if (!library) return false;
  *place = {library->path.string(), ""};
  const std::string major = std::to_string(library->version);
  if (const auto builtins = newest_library(folder, "libnvrtc-builtins.so." + major + ".")) {
    place->version = major + "." + std::to_string(builtins->version);
  }
  return true;
}

Result<NvrtcPlace> find_named(const std::string& named) {
  NvrtcPlace place;
  std::error_code error;
  if (fs::is_directory(named, error)) {
    if (find_in(named, &place)) return place;
    return make_status(StatusCode::kUnavailable, "FOVEA_NVRTC is {}, a folder without libnvrtc.so.*", shorten(named));
  }
  if (!fs::exists(named, error)) {
    return make_status(StatusCode::kUnavailable,
                       "FOVEA_NVRTC is {}, which does not exist; expected libnvrtc.so.* or its folder", shorten(named));
  }
  NvrtcPlace beside;
  if (find_in(fs::path(named).parent_path(), &beside) && beside.path == named) return beside;
  return NvrtcPlace{named, ""};
}

}  // namespace

Result<NvrtcPlace> find_nvrtc() {
  if (const std::string named = env_string(EnvVar::kNvrtc); !named.empty()) return find_named(named);
  NvrtcPlace place;
  for (const fs::path& folder : library_folders()) {
    if (find_in(folder, &place)) return place;
  }
  return make_status(StatusCode::kUnavailable,
                     "NVRTC, which compiles kernels, was not found; install the CUDA toolkit or run `pip install "
                     "nvidia-cuda-nvrtc`, and let FOVEA_NVRTC name its libnvrtc.so.* or the folder of it");
}

}  // namespace fovea::jit
