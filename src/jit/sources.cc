// Questions about the embedded sources.
#include "jit/sources.h"

#include <algorithm>

#include "base/hash.h"

namespace fovea::jit {

std::uint64_t sources_hash(std::span<const SourceFile> sources) {
  std::uint64_t hash = 0;
  for (const SourceFile& source : sources) {
    hash = hash_combine(hash, hash_combine(hash_string(source.path), hash_string(source.text())));
  }
  return hash;
}

bool has_source(std::span<const SourceFile> sources, std::string_view path) {
  return std::any_of(sources.begin(), sources.end(), [&](const SourceFile& source) { return source.path == path; });
}

}  // namespace fovea::jit
