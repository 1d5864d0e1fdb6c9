// Known answers and sensitivity of the hash wrappers.
#include "base/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace fovea {
namespace {

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(hash_bytes(nullptr, 0), 0x2d06800538d394c2u);  // XXH3_64bits of nothing, from its specification
}

TEST(Hash, SpanEqualsItsBytes) {
  const std::array<std::int32_t, 3> values = {1, 2, 3};
  EXPECT_EQ(hash_span(std::span<const std::int32_t>(values)), hash_bytes(values.data(), 12));
}

TEST(Hash, SeedOrderAndEachByteMatter) {
  std::set<std::uint64_t> seen;
  for (int seed = 0; seed < 4; ++seed) seen.insert(hash_string("abc", static_cast<std::uint64_t>(seed)));
  std::string text(300, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = 'y';
    seen.insert(hash_string(text));
    text[i] = 'x';
  }
  EXPECT_EQ(seen.size(), 304u);
  EXPECT_NE(hash_combine(1, 2), hash_combine(2, 1));
}

}  // namespace
}  // namespace fovea
