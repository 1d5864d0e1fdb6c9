#include "machine/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/cgroup.h"

namespace fovea::app {
namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::int64_t parse_size(const std::string& text) {
  std::istringstream in(text);
  std::int64_t value = 0;
  char unit = 0;
  in >> value >> unit;
  if (unit == 'K') return value << 10;
  if (unit == 'M') return value << 20;
  return value;
}

}  // namespace

Machine read_machine() {
  Machine machine;
  const char* wanted[] = {"sse4_2",      "avx",         "avx2",        "fma",      "f16c",     "avx512f", "avx512bw",
                          "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"};
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  machine.hypervisor = "no";
  while (std::getline(cpuinfo, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (machine.cpu.empty() && line.rfind("model name", 0) == 0) machine.cpu = line.substr(colon + 2);
    if (machine.features.empty() && line.rfind("flags", 0) == 0) {
      std::istringstream flags(line.substr(colon + 1));
      std::vector<std::string> all;
      for (std::string flag; flags >> flag;) all.push_back(flag);
      for (const char* name : wanted) {
        if (std::find(all.begin(), all.end(), name) != all.end()) machine.features.emplace_back(name);
      }
      if (std::find(all.begin(), all.end(), "hypervisor") != all.end()) machine.hypervisor = "yes";
    }
  }
  std::ifstream meminfo("/proc/meminfo");
  while (std::getline(meminfo, line)) {
    std::istringstream in(line);
    std::string key;
    std::int64_t kib = 0;
    in >> key >> kib;
    if (key == "MemTotal:") machine.memory_bytes = kib << 10;
  }
  machine.logical_cpus = static_cast<std::int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.allowed_cpus = affinity_cpus();
  machine.quota_cpus = quota_cpus();
  machine.threads = usable_cpus();
  machine.memory_available = static_cast<std::int64_t>(available_memory_bytes());
  machine.l2_bytes = parse_size(read_line("/sys/devices/system/cpu/cpu0/cache/index2/size"));
  machine.l3_bytes = parse_size(read_line("/sys/devices/system/cpu/cpu0/cache/index3/size"));
  utsname names{};
  if (uname(&names) == 0) machine.kernel = std::string(names.sysname) + " " + names.release;
  return machine;
}

bool has_feature(const Machine& machine, const std::string& name) {
  return std::find(machine.features.begin(), machine.features.end(), name) != machine.features.end();
}

nlohmann::json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"logical_cpus", machine.logical_cpus},
          {"allowed_cpus", machine.allowed_cpus},
          {"quota_cpus", machine.quota_cpus},
          {"threads", machine.threads},
          {"memory_bytes", machine.memory_bytes},
          {"memory_available", machine.memory_available},
          {"l2_bytes", machine.l2_bytes},
          {"l3_bytes", machine.l3_bytes},
          {"features", machine.features},
          {"kernel", machine.kernel},
          {"virtual", machine.hypervisor}};
}

}  // namespace fovea::app
