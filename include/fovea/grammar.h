// GrammarSpec: what an answer must look like. Given to Engine::compile_grammar, whose result goes with a request.
#pragma once

#include <cstdint>
#include <string>

namespace fovea {

enum class GrammarKind : std::uint8_t {
  kJsonSchema,     // a JSON Schema; objects hold only what it names, in its order
  kRegex,          // a regular expression for the whole answer
  kEbnf,           // rules as xgrammar writes them (GBNF), of which `root` is the answer
  kStructuralTag,  // xgrammar's JSON for text with constrained parts
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;
};

class Grammar;  // compiled, for one engine

}  // namespace fovea
