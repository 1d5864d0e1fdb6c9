// The order of looking: memory, disk, compile.
#include "jit/compiler.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "base/per_process.h"
#include "base/quote.h"
#include "base/status.h"
#include "jit/sources.h"

namespace fovea::jit {
namespace {

// Of everything but the compiler's version, which is part of the file's name: a machine without NVRTC takes a kernel
// of any version that its driver loads.
std::string key_of(const KernelSource& source) {
  static const std::string sources = fmt::format("{:016x}", sources_hash(device_sources()));
  std::string flags;
  for (const std::string& flag : source.flags) flags += flag + "\n";
  return cache_key({"cubin", source.arch, sources, flags, source.text});
}

// find_nvrtc() lists folders: what it found is kept as long as the environment that it follows stays the same.
Result<NvrtcPlace> place_of_nvrtc() {
  struct Kept {
    std::mutex mutex;
    std::string found_for;
    NvrtcPlace found;
  };
  auto& [mutex, found_for, found] = per_process<Kept>();
  std::string environment = fmt::format("{}\n", newest_cuda());
  for (const char* name : {"FOVEA_NVRTC", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}) {
    const char* value = std::getenv(name);
    environment += fmt::format("{}={}\n", name, value != nullptr ? value : "");
  }
  const std::lock_guard lock(mutex);
  if (environment == found_for) return found;
  FOVEA_ASSIGN_OR_RETURN(found, find_nvrtc());
  found_for = environment;
  return found;
}

CubinPtr to_cubin(const std::string& name, CacheEntry entry) {
  auto cubin = std::make_shared<Cubin>();
  cubin->name = name;
  cubin->bytes = std::move(entry.data);
  cubin->kernels = parse_ptxas_log(entry.log);
  cubin->log = std::move(entry.log);
  return cubin;
}

}  // namespace

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::kMemory: return "memory";
    case Origin::kDisk: return "disk";
    case Origin::kCompiled: return "compiled";
  }
  return "?";
}

std::uint64_t cache_limit_bytes() {
  constexpr std::int64_t kDefaultMib = 1024;
  const Result<std::int64_t> mib = env_int(EnvVar::kCacheLimitMib, 1, std::int64_t{1} << 30);
  if (!mib.ok()) log_warning("{}; taking {}", mib.status().message(), kDefaultMib);
  return static_cast<std::uint64_t>(mib.ok() ? *mib : kDefaultMib) << 20;
}

Compiler::Compiler(std::string folder, std::uint64_t limit_bytes) : disk_(std::move(folder), limit_bytes) {}

Compiler& Compiler::shared() {
  return per_process<Compiler>([] { return new Compiler(default_cache_folder(), cache_limit_bytes()); });
}

Result<CubinPtr> Compiler::get(const KernelSource& source, Origin* origin) {
  Origin unused;
  Origin& from = origin != nullptr ? *origin : unused;
  from = Origin::kMemory;
  const std::string key = key_of(source);
  return memory_.get(key, [&] { return make(source, key, &from); });
}

// The text that the names of its entries carry; empty without a compiler.
Result<std::string> Compiler::tool(const Result<NvrtcPlace>& place) {
  if (!place.ok()) return std::string();
  if (!place->version.empty()) return "nvrtc" + place->version;
  // Where the files do not tell the version, the library does.
  FOVEA_ASSIGN_OR_RETURN(const Nvrtc* const nvrtc, Nvrtc::load());
  return "nvrtc" + nvrtc->version();
}

// Without a compiler, the newest version whose kernels the driver loads.
std::optional<CacheEntry> Compiler::find(const std::string& key, const std::string& made_by) {
  if (!made_by.empty()) return disk_.find(key, made_by);
  std::pair<int, int> newest{-1, 0};
  for (const std::string& name : disk_.tools_of(key)) {
    std::pair<int, int> version;
    if (std::sscanf(name.c_str(), "nvrtc%d.%d", &version.first, &version.second) != 2) continue;
    if (newest_cuda() == 0 || version.first <= newest_cuda()) newest = std::max(newest, version);
  }
  if (newest.first < 0) return std::nullopt;
  return disk_.find(key, fmt::format("nvrtc{}.{}", newest.first, newest.second));
}

bool Compiler::is_stored(const KernelSource& source) {
  const Result<std::string> made_by = tool(place_of_nvrtc());
  return made_by.ok() && find(key_of(source), *made_by).has_value();
}

Result<CubinPtr> Compiler::make(const KernelSource& source, const std::string& key, Origin* origin) {
  const Result<NvrtcPlace> place = place_of_nvrtc();
  FOVEA_ASSIGN_OR_RETURN(std::string made_by, tool(place));
  *origin = Origin::kDisk;
  if (auto entry = find(key, made_by)) return to_cubin(source.name, *std::move(entry));
  if (!place.ok()) {
    return make_status(place.status().code(), "kernel {} for {} is not in the cache ({}), and {}", source.name,
                       source.arch, disk_.folder().empty() ? "which is off" : shorten(disk_.folder()),
                       place.status().message());
  }
  FOVEA_ASSIGN_OR_RETURN(const Nvrtc* const nvrtc, Nvrtc::load());
  made_by = "nvrtc" + nvrtc->version();
  const DiskCache::Lock lock(disk_, key);
  if (auto entry = disk_.find(key, made_by)) return to_cubin(source.name, *std::move(entry));
  *origin = Origin::kCompiled;
  CacheEntry entry;
  FOVEA_ASSIGN_OR_RETURN(entry.data, nvrtc->compile(source, &entry.log));
  disk_.publish(key, made_by, entry);
  return to_cubin(source.name, std::move(entry));
}

}  // namespace fovea::jit
