// The one table of environment variables that the library reads: name, meaning, default. Read by base itself, by
// Engine::create and by `fovea doctor`, which prints the table. (Command-line flags have environment names of their
// own.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fovea/status.h"

namespace fovea {

enum class EnvVar : std::uint8_t {
  kLogLevel,
  kNumThreads,
  kModelDir,
  kCacheDir,
  kCacheLimitMib,
  kNvrtc,
  kLibcuda,
  kCublasLt,
  kCxx,
  kCount,  // not a variable
};

struct EnvEntry {
  EnvVar id;
  const char* name;
  const char* meaning;
  const char* default_value;  // as text; "" = unset
};

// Every variable, in the order of EnvVar.
std::span<const EnvEntry> env_table();
const EnvEntry& env_entry(EnvVar id);

// The value, or the table's default when unset or empty. Reads the environment at each call.
std::string env_string(EnvVar id);
// As above, parsed; kInvalidArgument names the variable, its value and the range.
Result<std::int64_t> env_int(EnvVar id, std::int64_t min, std::int64_t max);

}  // namespace fovea
