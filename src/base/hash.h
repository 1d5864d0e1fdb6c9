// XXH3 over bytes: cache keys, content stamps, hash maps of spans. Not for adversarial keys unless the seed is secret.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace fovea {

inline std::uint64_t hash_bytes(const void* data, std::size_t size_bytes, std::uint64_t seed = 0) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}
inline std::uint64_t hash_string(std::string_view text, std::uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}
// Of the elements' bytes; T must have no padding.
template <typename T>
std::uint64_t hash_span(std::span<const T> values, std::uint64_t seed = 0) {
  static_assert(std::has_unique_object_representations_v<T>, "padding bytes would make the hash random");
  return hash_bytes(values.data(), values.size_bytes(), seed);
}
// Order matters: hash_combine(a, b) != hash_combine(b, a).
inline std::uint64_t hash_combine(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t both[2] = {a, b};
  return hash_bytes(both, sizeof(both));
}

}  // namespace fovea
