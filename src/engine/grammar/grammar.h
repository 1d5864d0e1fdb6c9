// Grammars: what an answer must look like, compiled against a model's vocabulary, and where an answer stands in one.
// The engine compiles a GrammarSpec, makes a matcher a choice, and samples only what the matcher allows. The work is
// done by xgrammar; a build without it (FOVEA_GRAMMAR=OFF) refuses every grammar.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/grammar.h"
#include "fovea/status.h"

namespace fovea {

// Compiled; immutable, shared by matchers in any thread.
class Grammar {
 public:
  struct Compiled;
  explicit Grammar(std::unique_ptr<const Compiled> compiled);
  ~Grammar();
  const Compiled& compiled() const { return *compiled_; }

 private:
  std::unique_ptr<const Compiled> compiled_;
};

class GrammarCompiler {
 public:
  // Gives the bytes of each token of the vocabulary; empty for those that no grammar may produce (special tokens, ids
  // without a token).
  using Vocabulary = std::function<std::vector<std::string>()>;

  // The vocabulary is asked for by the first compilation. stop_tokens end an answer; without any, it ends where the
  // grammar is complete.
  GrammarCompiler(Vocabulary vocabulary, std::vector<std::int32_t> stop_tokens);
  ~GrammarCompiler();

  // Thread-safe; the latest grammars are kept. kInvalidArgument: the specification is wrong, too large, or asks for
  // what could not be kept to; kUnsupported: this build has no grammars.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Where one answer stands. Used by one thread at a time.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  ~GrammarMatcher();

  // A bit a token (bit id % 32 of word id / 32), set where the token may come next; empty: any token may. Valid until
  // accept(). Where something may be repeated so many times only, more bits may be set than should be.
  // kInvalidArgument, from then on: following the answer takes too much work.
  Result<std::span<const std::int32_t>> allowed();
  // False when the token may not come all the same: nothing has changed but allowed(), which leaves it out from now on.
  // kInternal when it was not allowed.
  Result<bool> accept(std::int32_t token);
  // The text that must come next; often empty.
  std::string forced();
  // How many of these tokens may come one after the other; where counts are kept to, perhaps fewer.
  std::size_t fitting(std::span<const std::int32_t> tokens);
  // Nothing may follow.
  bool finished() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
