// Where shared libraries of NVIDIA's lie that no linker knows of: toolkits, and the wheels of a Python environment.
// Used by jit/ (NVRTC) and cuda/ (cuBLASLt).
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

// Folders in the order to look: LD_LIBRARY_PATH, the system's, /usr/local/cuda*/lib64 (the highest version first), and
// nvidia/*/lib of the wheels in VIRTUAL_ENV and in a .venv above the program. Some may not exist.
std::vector<std::filesystem::path> library_folders();

struct LibraryFile {
  std::filesystem::path path;
  int version = 0;
};

// Of the files that are named `prefix` and a number ("libnvrtc.so." and 13, or 13.0.88), the one of the highest that is
// at most `most`.
std::optional<LibraryFile> newest_library(const std::filesystem::path& folder, std::string_view prefix,
                                          int most = std::numeric_limits<int>::max());
// The one of such a name that this process has loaded.
std::optional<LibraryFile> loaded_library(std::string_view prefix);

}  // namespace fovea
