// Added tokens of a tokenizer (special tokens and others that are found in text before anything else), and the search
// for them. Called by the Tokenizer: once on the raw text, once on normalized text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fovea {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  std::string text;          // what it decodes to: the content, or its normalized form where it is normalized
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space behind it along
  bool normalized = true;    // searched in normalized text instead of raw text
  bool special = false;      // skipped by decode(skip_special), not found when parse_special is off
};

// A stretch of text: an added token (id >= 0) or what lies between tokens (id -1).
struct TokenSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t id = -1;
};

// Finds a set of added tokens: leftmost, and the longest of those that start at the same place.
class AddedTokenFinder {
 public:
  static constexpr std::size_t kMaxLength = 1024;

  // `pattern` is what to look for: the token's content, or its normalized form. Empty patterns are never found.
  Status add(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }

  // Cuts the text; empty stretches are left out. With parse_special off, special tokens count as text.
  std::vector<TokenSpan> find(std::string_view text, bool parse_special) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index of the token that ends here
    std::unordered_map<char, std::int32_t> next;
  };
  struct Flags {
    std::int32_t id;
    bool single_word, lstrip, rstrip, special;
  };
  std::vector<Node> nodes_{1};
  std::vector<Flags> tokens_;
  std::array<bool, 256> starts_{};
};

}  // namespace fovea
