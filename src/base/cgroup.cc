// Reads cgroup and /proc trees; see base/cgroup.h. A file that is missing or unreadable sets no limit.
#include "base/cgroup.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace fovea {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// /proc and cgroup files report size 0, so they are read as streams.
std::optional<std::string> slurp(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::int64_t> leading_int(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> read_int(const std::string& path) {
  const std::optional<std::string> text = slurp(path);
  return text ? leading_int(*text) : std::nullopt;
}

// The number after "key" at the start of a line: "MemAvailable:  123 kB", "inactive_file 123".
std::optional<std::int64_t> keyed_int(const std::string& path, std::string_view key) {
  const std::optional<std::string> text = slurp(path);
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key) && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == ':')) {
      return leading_int(std::string_view(line).substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

bool lists_controller(std::string_view controllers, std::string_view wanted) {
  while (true) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == wanted) return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
}

// Adds base + path and every parent of it down to base. Without a cgroup namespace of its own a container sees a path
// of the host here: the parents that do not exist are simply not found, and base itself is the container's group.
void add_chain(const std::string& base, std::string path, std::vector<std::string>* folders) {
  while (!path.empty() && path != "/") {
    folders->push_back(base + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  folders->push_back(base);
}

// Folders to look in for a controller: of the v2 tree (also as mounted at `unified` beside v1) and of the v1 tree.
std::vector<std::string> cgroup_folders(const SystemRoots& roots, std::string_view controller) {
  std::vector<std::string> folders;
  std::istringstream lines(slurp(roots.proc + "/self/cgroup").value_or("0::/\n"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      add_chain(roots.cgroup, path, &folders);
    } else if (lists_controller(controllers, controller)) {
      add_chain(roots.cgroup + "/" + controllers, path, &folders);
      if (controllers != controller) add_chain(roots.cgroup + "/" + std::string(controller), path, &folders);
    }
  }
  return folders;
}

// Quota of one folder in thousandths of a CPU, or no limit.
std::uint64_t folder_milli_cpus(const std::string& folder) {
  std::int64_t quota = -1;
  std::int64_t period = 0;
  if (const std::optional<std::string> text = slurp(folder + "/cpu.max")) {  // v2: "max 100000" or "150000 100000"
    const std::size_t space = text->find(' ');
    if (space == std::string::npos) return kNoLimit;
    quota = leading_int(*text).value_or(-1);
    period = leading_int(std::string_view(*text).substr(space + 1)).value_or(0);
  } else {
    quota = read_int(folder + "/cpu.cfs_quota_us").value_or(-1);
    period = read_int(folder + "/cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return kNoLimit;
  return static_cast<std::uint64_t>(static_cast<double>(quota) / static_cast<double>(period) * 1000.0);
}

// Limit minus use of one folder, or no limit.
std::uint64_t folder_memory_left(const std::string& folder) {
  std::optional<std::int64_t> limit = read_int(folder + "/memory.max");  // v2; "max" is no number
  std::optional<std::int64_t> used = read_int(folder + "/memory.current");
  std::string_view cache_key = "inactive_file";
  if (!used) {
    limit = read_int(folder + "/memory.limit_in_bytes");
    used = read_int(folder + "/memory.usage_in_bytes");
    cache_key = "total_inactive_file";
  }
  if (!limit || !used || *limit < 0) return kNoLimit;
  const std::int64_t cache = keyed_int(folder + "/memory.stat", cache_key).value_or(0);
  const std::int64_t held = std::max<std::int64_t>(0, *used - cache);
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, *limit - held));
}

}  // namespace

int affinity_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

int quota_cpus(const SystemRoots& roots) {
  std::uint64_t least = kNoLimit;
  for (const std::string& folder : cgroup_folders(roots, "cpu")) least = std::min(least, folder_milli_cpus(folder));
  if (least == kNoLimit) return 0;
  return static_cast<int>(std::clamp<std::uint64_t>(least / 1000, 1, 1u << 16));
}

int usable_cpus(const SystemRoots& roots) {
  const int quota = quota_cpus(roots);
  return quota == 0 ? affinity_cpus() : std::min(quota, affinity_cpus());
}

std::uint64_t available_memory_bytes(const SystemRoots& roots) {
  const std::int64_t kib = keyed_int(roots.proc + "/meminfo", "MemAvailable").value_or(0);
  std::uint64_t least = static_cast<std::uint64_t>(std::max<std::int64_t>(0, kib)) * 1024;
  for (const std::string& folder : cgroup_folders(roots, "memory")) least = std::min(least, folder_memory_left(folder));
  return least;
}

}  // namespace fovea
