// XXH3 with 128 bits: names of cached pages and of what files of them were made from, where 64 would meet by chance.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace fovea {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

inline Hash128 hash128_bytes(const void* data, std::size_t size_bytes, std::uint64_t seed = 0) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size_bytes, seed);
  return {hash.low64, hash.high64};
}

// For hash maps: the bits are even already.
struct Hash128Bits {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

}  // namespace fovea
