// Looks at folders and the names in them; loads nothing. See base/library_search.h.
#include "base/library_search.h"

#include <link.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <system_error>

namespace fovea {
namespace {

namespace fs = std::filesystem;

// How far above the program a .venv is looked for: build/release/tests/NAME is three folders down.
constexpr int kFoldersAbove = 4;

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The number behind `prefix` in the file's name.
std::optional<int> version_of(const fs::path& path, std::string_view prefix) {
  const std::string name = path.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(prefix.size());
  int version = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), version);
  if (error != std::errc() || (end != rest.data() + rest.size() && *end != '.')) return std::nullopt;
  return version;
}

void add_wheels(const fs::path& venv, std::vector<fs::path>* folders) {
  for (const fs::path& python : sorted_entries(venv / "lib")) {
    for (const fs::path& package : sorted_entries(python / "site-packages" / "nvidia")) {
      folders->push_back(package / "lib");
    }
  }
}

}  // namespace

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
  folders.insert(folders.end(), toolkits.rbegin(), toolkits.rend());
  if (const char* venv = std::getenv("VIRTUAL_ENV"); venv != nullptr) add_wheels(venv, &folders);
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int i = 0; i < kFoldersAbove && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    add_wheels(folder / ".venv", &folders);
  }
  return folders;
}

std::optional<LibraryFile> newest_library(const fs::path& folder, std::string_view prefix, int most) {
  std::optional<LibraryFile> newest;
  for (const fs::path& path : sorted_entries(folder)) {
    const std::optional<int> version = version_of(path, prefix);
    if (version && *version <= most && (!newest || *version > newest->version)) newest = {path, *version};
  }
  return newest;
}

std::optional<LibraryFile> loaded_library(std::string_view prefix) {
  struct Search {
    std::string_view prefix;
    std::optional<LibraryFile> found;
  } search{prefix, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        auto& s = *static_cast<Search*>(to);
        const fs::path path = info->dlpi_name != nullptr ? info->dlpi_name : "";
        const std::optional<int> version = version_of(path, s.prefix);
        if (version) s.found = {path, *version};
        return version ? 1 : 0;
      },
      &search);
  return search.found;
}

}  // namespace fovea
