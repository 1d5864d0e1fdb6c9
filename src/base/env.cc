// The table of environment variables and its getters; see base/env.h.
#include "base/env.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::array<EnvEntry, static_cast<std::size_t>(EnvVar::kCount)> kTable = {{
    {EnvVar::kLogLevel, "FOVEA_LOG_LEVEL", "what is logged to stderr: trace, debug, info, warning, error, off", "off"},
    {EnvVar::kNumThreads, "FOVEA_NUM_THREADS", "compute threads; 0 takes what affinity and cgroup limits leave", "0"},
    {EnvVar::kModelDir, "FOVEA_MODEL_DIR", "model folder to use instead of the embedded one", ""},
    {EnvVar::kCacheDir, "FOVEA_CACHE_DIR", "folder of compiled kernels; else XDG_CACHE_HOME/fovea or ~/.cache/fovea",
     ""},
    {EnvVar::kCacheLimitMib, "FOVEA_CACHE_LIMIT_MIB", "what that folder may hold before the oldest kernels go", "1024"},
    {EnvVar::kNvrtc, "FOVEA_NVRTC", "libnvrtc.so.* or its folder, where it is not found by itself", ""},
    {EnvVar::kLibcuda, "FOVEA_LIBCUDA", "the CUDA driver to load instead of the system's libcuda.so.1", ""},
    {EnvVar::kCublasLt, "FOVEA_CUBLASLT", "libcublasLt.so.* or its folder, where it is not found by itself", ""},
    {EnvVar::kCxx, "FOVEA_CXX", "C++ compiler of variants for the CPU; else c++, g++ or clang++ of PATH", ""},
}};

}  // namespace

std::span<const EnvEntry> env_table() { return kTable; }

const EnvEntry& env_entry(EnvVar id) {
  FOVEA_CHECK(id < EnvVar::kCount);
  const EnvEntry& entry = kTable[static_cast<std::size_t>(id)];
  FOVEA_CHECK(entry.id == id);
  return entry;
}

std::string env_string(EnvVar id) {
  const EnvEntry& entry = env_entry(id);
  const char* value = std::getenv(entry.name);
  return value != nullptr && *value != '\0' ? value : entry.default_value;
}

Result<std::int64_t> env_int(EnvVar id, std::int64_t min, std::int64_t max) {
  const std::string text = env_string(id);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return invalid_argument("{} is {}, expected an integer from {} to {}", env_entry(id).name, quote(text), min, max);
  }
  return value;
}

}  // namespace fovea
