// Finds libnvrtc by looking at files: loading 100 MB to learn a version would cost more than reading a kernel.
#include <atomic>
#include <climits>
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

std::atomic<int> g_newest_cuda{0};

// The newest libnvrtc.so.N of a folder, N at most `most`, and its version from the built-ins beside it
// (libnvrtc-builtins.so.N.M).
bool find_in(const fs::path& folder, int most, NvrtcPlace* place) {
  const auto library = newest_library(folder, "libnvrtc.so.", most);
  if (!library) return false;
  *place = {library->path.string(), ""};
  const std::string major = std::to_string(library->version);
  if (const auto builtins = newest_library(folder, "libnvrtc-builtins.so." + major + ".")) {
    place->version = major + "." + std::to_string(builtins->version);
  }
  return true;
}

int most_major() { return g_newest_cuda != 0 ? g_newest_cuda.load() : INT_MAX; }

Result<NvrtcPlace> find_named(const std::string& named) {
  NvrtcPlace place;
  std::error_code error;
  if (fs::is_directory(named, error)) {
    if (find_in(named, most_major(), &place)) return place;
    if (const auto newer = newest_library(named, "libnvrtc.so.")) return too_new(newer->path.string(), newer->version);
    return make_status(StatusCode::kUnavailable, "FOVEA_NVRTC is {}, a folder without libnvrtc.so.*", shorten(named));
  }
  if (!fs::exists(named, error)) {
    return make_status(StatusCode::kUnavailable,
                       "FOVEA_NVRTC is {}, which does not exist; expected libnvrtc.so.* or its folder", shorten(named));
  }
  NvrtcPlace beside;
  if (find_in(fs::path(named).parent_path(), most_major(), &beside) && beside.path == named) return beside;
  const auto newest = newest_library(fs::path(named).parent_path(), "libnvrtc.so.");
  if (newest && newest->path == named && newest->version > most_major()) return too_new(named, newest->version);
  return NvrtcPlace{named, ""};
}

}  // namespace

void set_newest_cuda(int major) { g_newest_cuda = major; }
int newest_cuda() { return g_newest_cuda; }

Status too_new(const std::string& path, int major) {
  return make_status(StatusCode::kUnavailable,
                     "NVRTC {} ({}) makes kernels that this machine's driver, which speaks CUDA {}, does not load; "
                     "update NVIDIA's driver, or run `pip install nvidia-cuda-nvrtc-cu{}` and let FOVEA_NVRTC name its "
                     "libnvrtc.so.{}",
                     major, shorten(path), newest_cuda(), newest_cuda(), newest_cuda());
}

Result<NvrtcPlace> find_nvrtc() {
  if (const std::string named = env_string(EnvVar::kNvrtc); !named.empty()) return find_named(named);
  NvrtcPlace place;
  for (const fs::path& folder : library_folders()) {
    if (find_in(folder, most_major(), &place)) return place;
  }
  // pip installs it anywhere; whoever imported PyTorch has it loaded.
  const auto loaded = loaded_library("libnvrtc.so.");
  if (loaded && loaded->version <= most_major() && find_in(loaded->path.parent_path(), loaded->version, &place) &&
      place.path == loaded->path) {
    return place;
  }
  if (loaded && loaded->version <= most_major()) return NvrtcPlace{loaded->path.string(), ""};
  for (const fs::path& folder : library_folders()) {
    if (const auto newer = newest_library(folder, "libnvrtc.so.")) return too_new(newer->path.string(), newer->version);
  }
  return make_status(StatusCode::kUnavailable,
                     "NVRTC, which compiles kernels, was not found; install the CUDA toolkit or run `pip install "
                     "nvidia-cuda-nvrtc`, and let FOVEA_NVRTC name its libnvrtc.so.* or the folder of it");
}

}  // namespace fovea::jit
