// Feeds bytes to the safetensors parser; what it accepts must lie inside the file, aligned and without overlaps.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto entries = fovea::parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "input");
  if (!entries.ok()) {
    if (!entries.status().message().starts_with("input")) std::abort();
    return 0;
  }
  std::vector<bool> taken(size);
  for (const auto& [name, entry] : *entries) {
    if (entry.begin > entry.end || entry.end > size) std::abort();
    std::uint64_t elements = 1;
    for (const std::int64_t extent : entry.shape) {
      if (extent < 0) std::abort();
      elements *= static_cast<std::uint64_t>(extent);
    }
    if (elements * static_cast<std::uint64_t>(fovea::dtype_bits(entry.dtype)) != (entry.end - entry.begin) * 8) {
      std::abort();
    }
    for (std::uint64_t i = entry.begin; i < entry.end; ++i) {
      if (taken[i]) std::abort();
      taken[i] = true;
    }
  }
  return 0;
}
