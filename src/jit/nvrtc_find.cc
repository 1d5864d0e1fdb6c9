// Finds libnvrtc by looking at files: loading 100 MB to learn a version would cost more than reading a kernel.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/env.h"
#include "base/status.h"
#include "jit/nvrtc.h"

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibrary = "libnvrtc.so.";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";
// How far above the program a .venv is looked for: build/release/tests/NAME is three folders down.
constexpr int kFoldersAbove = 4;

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

int leading_number(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The newest libnvrtc.so.N of a folder, and its version from the built-ins beside it (libnvrtc-builtins.so.N.M).
bool find_in(const fs::path& folder, NvrtcPlace* place) {
  int newest = -1;
  for (const fs::path& path : sorted_entries(folder)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(kLibrary)) continue;
    const std::string rest = name.substr(kLibrary.size());
    if (leading_number(rest) <= newest || rest.find_first_not_of("0123456789") != std::string::npos) continue;
    newest = leading_number(rest);
    *place = {path.string(), ""};
  }
  if (newest < 0) return false;
  int minor = -1;
  const std::string builtins = std::string(kBuiltins) + std::to_string(newest) + ".";
  for (const fs::path& path : sorted_entries(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with(builtins)) minor = std::max(minor, leading_number(name.substr(builtins.size())));
  }
  if (minor >= 0) place->version = std::to_string(newest) + "." + std::to_string(minor);
  return true;
}

bool find_in_venv(const fs::path& venv, NvrtcPlace* place) {
  for (const fs::path& python : sorted_entries(venv / "lib")) {
    for (const fs::path& package : sorted_entries(python / "site-packages" / "nvidia")) {
      if (find_in(package / "lib", place)) return true;
    }
  }
  return false;
}

std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders;
  if (const char* list = std::getenv("LD_LIBRARY_PATH"); list != nullptr) {
    std::string_view rest = list;
    while (!rest.empty()) {
      const std::size_t colon = std::min(rest.find(':'), rest.size());
      if (colon > 0) folders.emplace_back(rest.substr(0, colon));
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    folders.emplace_back(folder);
  }
  std::vector<fs::path> toolkits;
  for (const fs::path& path : sorted_entries("/usr/local")) {
    if (path.filename().string().starts_with("cuda")) toolkits.push_back(path / "lib64");
  }
  folders.insert(folders.end(), toolkits.rbegin(), toolkits.rend());  // the highest version first
  return folders;
}

Result<NvrtcPlace> find_named(const std::string& named) {
  NvrtcPlace place;
  std::error_code error;
  if (fs::is_directory(named, error)) {
    if (find_in(named, &place)) return place;
    return make_status(StatusCode::kUnavailable, "FOVEA_NVRTC is {}, a folder without libnvrtc.so.*", named);
  }
  if (!fs::exists(named, error)) {
    return make_status(StatusCode::kUnavailable,
                       "FOVEA_NVRTC is {}, which does not exist; expected libnvrtc.so.* or its folder", named);
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
  if (const char* venv = std::getenv("VIRTUAL_ENV"); venv != nullptr && find_in_venv(venv, &place)) return place;
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int i = 0; i < kFoldersAbove && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    if (find_in_venv(folder / ".venv", &place)) return place;
  }
  return make_status(StatusCode::kUnavailable,
                     "NVRTC, which compiles kernels, was not found; install the CUDA toolkit or run `pip install "
                     "nvidia-cuda-nvrtc`, and let FOVEA_NVRTC name its libnvrtc.so.* or the folder of it");
}

}  // namespace fovea::jit
