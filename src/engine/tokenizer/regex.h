// A regular expression of a tokenizer.json, run by PCRE2 with JIT. Tokenizer files are written for Oniguruma; compile()
// translates what differs (\s, \w, multi-line anchors) and refuses what it cannot translate. Used by normalizers,
// pre-tokenizers and decoders. Matching is bounded: a pattern that backtracks without end gives a Status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fovea {

class Regex {
 public:
  // A half-open byte range of the text, and whether it is a match or what lies between matches.
  struct Span {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    bool match = false;
  };

  static Result<Regex> compile(std::string_view pattern);
  // A pattern that matches exactly this text.
  static Result<Regex> literal(std::string_view text);

  // Cuts `text` (valid UTF-8, under 4 GiB) into matches and what lies between them; the spans cover it in order.
  // Appends to `spans`. Thread-safe.
  Status split(std::string_view text, std::vector<Span>& spans) const;

  // `text` with every match replaced by `with`.
  Result<std::string> replace_all(std::string_view text, std::string_view with) const;

 private:
  struct Code;
  Status split_regex(std::string_view text, std::vector<Span>& spans) const;

  bool is_literal_ = false;
  std::string source_;  // the pattern as given, or the literal text
  std::shared_ptr<const Code> code_;
};

}  // namespace fovea
