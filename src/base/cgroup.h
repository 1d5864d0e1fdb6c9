// What this process may use: CPUs (affinity and cgroup quota) and memory (cgroup limits and what the kernel has left),
// under cgroup v1, v2 or a mix of both. Asked by the thread pool, by the KV pool when it sizes itself and by `fovea
// doctor`.
#pragma once

#include <cstdint>
#include <string>

namespace fovea {

// Where the kernel's trees stand; tests point these at fake trees.
struct SystemRoots {
  std::string cgroup = "/sys/fs/cgroup";
  std::string proc = "/proc";
};

// CPUs that the affinity mask allows, at least 1.
int affinity_cpus();

// Whole CPUs that the tightest quota on the way to the cgroup root pays for, at least 1; 0 when there is no quota.
// Rounded down: a thread more than the quota pays for stalls all others at every barrier while it is throttled.
int quota_cpus(const SystemRoots& roots = {});

// The smaller of the two.
int usable_cpus(const SystemRoots& roots = {});

// Bytes this process can still allocate: the least of MemAvailable and, for each cgroup up to the root, limit minus use
// (inactive page cache counts as free). 0 when nothing is left; MemAvailable alone when there is no limit.
std::uint64_t available_memory_bytes(const SystemRoots& roots = {});

}  // namespace fovea
