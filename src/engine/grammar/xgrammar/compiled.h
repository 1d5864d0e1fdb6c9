// What a Grammar holds where xgrammar compiled it. Used by the compiler and by matchers.
#pragma once

#include <xgrammar/xgrammar.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/grammar.h"

namespace fovea {

// A model's tokens.
struct GrammarTokens {
  GrammarTokens(std::vector<std::string> all, const std::vector<std::int32_t>& stop_tokens);

  std::vector<std::string> texts;
  std::vector<std::int32_t> stops;
  std::vector<std::int32_t> by_text;  // sorted, as bytes
  xgrammar::TokenizerInfo info;
  xgrammar::TokenizerInfo bytes;   // of single bytes, quick to compile for
  xgrammar::TokenizerInfo sample;  // of some of the tokens: what they cost tells what all do
};

struct Grammar::Compiled {
  xgrammar::CompiledGrammar grammar;  // masks come from it
  // Over single bytes, where `grammar` is looser: what it lets through must pass here.
  std::optional<xgrammar::CompiledGrammar> exact;
  std::shared_ptr<const GrammarTokens> tokens;
};

// "... Check failed: (condition) is false: what a user can use" -> the end of it, on one line.
std::string readable_grammar_error(std::string message);

}  // namespace fovea
