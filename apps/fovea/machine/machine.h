// What this machine is: CPU, features, cores that the cgroup leaves, memory. Used by doctor and by every benchmark.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fovea::app {

struct Machine {
  std::string cpu;                    // model name
  std::int32_t logical_cpus = 0;      // of the machine
  std::int32_t allowed_cpus = 0;      // affinity mask
  std::int32_t quota_cpus = 0;        // whole CPUs that the cgroup pays for; 0: no limit
  std::int32_t threads = 0;           // what the engine takes by default
  std::int64_t memory_bytes = 0;      // of the machine
  std::int64_t memory_available = 0;  // to this process, now
  std::int64_t l2_bytes = 0, l3_bytes = 0;
  std::vector<std::string> features;  // those that matter here: avx2, avx512f, ...
  std::string kernel;                 // "Linux 6.1.0"
  std::string hypervisor;             // "yes" or "no"
};

Machine read_machine();
nlohmann::json machine_json(const Machine& machine);
// Whether /proc/cpuinfo names the feature.
bool has_feature(const Machine& machine, const std::string& name);

}  // namespace fovea::app
