// A build without xgrammar: every grammar is refused. Takes the place of the folder xgrammar.
#include "engine/grammar/grammar.h"

#include "base/status.h"

namespace fovea {

struct Grammar::Compiled {};
struct GrammarCompiler::Impl {};
struct GrammarMatcher::Impl {};

Grammar::Grammar(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;
GrammarCompiler::GrammarCompiler(Vocabulary, std::vector<std::int32_t>) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSpec&) {
  return unsupported("answers in a given form need xgrammar, and this build is without it (FOVEA_GRAMMAR)");
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar>) {}
GrammarMatcher::~GrammarMatcher() = default;
Result<std::span<const std::int32_t>> GrammarMatcher::allowed() { return std::span<const std::int32_t>(); }
Result<bool> GrammarMatcher::accept(std::int32_t) { return true; }
std::string GrammarMatcher::forced() { return ""; }
std::size_t GrammarMatcher::fitting(std::span<const std::int32_t> tokens) { return tokens.size(); }
bool GrammarMatcher::finished() const { return false; }

}  // namespace fovea
