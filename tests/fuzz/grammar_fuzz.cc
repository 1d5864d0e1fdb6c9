// Feeds bytes to the grammars of requests: JSON schemas, regular expressions, EBNF and structural tags, of which the
// first byte chooses one. What compiles is followed along tokens that it allows; xgrammar itself is compiled without
// sanitizers, so that they see what this project does around it.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "engine/grammar/grammar.h"

namespace {

constexpr std::int32_t kEnd = 256;

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"", "{\"", "\": ", "true", "\", \"", "12", "ab", "\n", "é"}) tokens.emplace_back(text);
  return tokens;
}

// One of those that are allowed, by `choice`; -1: none.
std::int32_t pick(std::span<const std::int32_t> mask, std::size_t count, std::size_t choice) {
  if (mask.empty()) return static_cast<std::int32_t>(choice % count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = (choice + i) % count;
    if (((mask[token / 32] >> (token % 32)) & 1) != 0) return static_cast<std::int32_t>(token);
  }
  return -1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fovea::GrammarCompiler compiler(vocabulary, {kEnd});
  if (size < 2) return 0;
  const auto kind = static_cast<fovea::GrammarKind>(data[0] % 4);
  const auto grammar = compiler.compile({kind, std::string(reinterpret_cast<const char*>(data) + 1, size - 1)});
  if (!grammar.ok()) {
    require(!grammar.status().message().empty());
    return 0;
  }
  const std::size_t count = vocabulary().size();
  fovea::GrammarMatcher matcher(*grammar);
  for (std::size_t i = 0; i < 64 && !matcher.finished(); ++i) {
    const auto allowed = matcher.allowed();
    if (!allowed.ok()) break;
    const std::int32_t token = pick(*allowed, count, data[i % size] * 31 + i);
    if (token < 0) break;
    const std::string forced = matcher.forced();
    const std::size_t fits = matcher.fitting(std::vector<std::int32_t>{token});
    const auto accepted = matcher.accept(token);
    if (!accepted.ok()) break;
    require(!*accepted || fits == 1);
    const auto first = static_cast<std::int32_t>(static_cast<unsigned char>(forced.empty() ? '\0' : forced[0]));
    require(!*accepted || forced.empty() || token >= kEnd || token == first);
  }
  return 0;
}
