// Implementation of added_tokens.h.
#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

std::size_t last_char(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::decode(text, last_char(text)).code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::decode(text, 0).code);
}

}  // namespace

Status AddedTokenFinder::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return ok_status();
  if (pattern.size() > kMaxLength) {
    return out_of_range("added token {} has {} bytes, expected at most {}", token.id, pattern.size(), kMaxLength);
  }
  std::int32_t node = 0;
  for (const char c : pattern) {
    const auto [place, fresh] = nodes_[node].next.try_emplace(c, static_cast<std::int32_t>(nodes_.size()));
    node = place->second;
    if (fresh) nodes_.emplace_back();
  }
  if (nodes_[node].token < 0) nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.special});
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  return ok_status();
}

std::vector<TokenSpan> AddedTokenFinder::find(std::string_view text, bool parse_special) const {
  std::vector<TokenSpan> spans;
  std::size_t done = 0;  // end of what has been handed out
  for (std::size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::int32_t node = 0, found = -1;
    std::size_t match_end = at;
    for (std::size_t i = at; i < text.size(); ++i) {
      const auto place = nodes_[node].next.find(text[i]);
      if (place == nodes_[node].next.end()) break;
      node = place->second;
      if (nodes_[node].token >= 0) {
        found = nodes_[node].token;
        match_end = i + 1;
      }
    }
    if (found < 0) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = match_end;
    at = match_end;  // also when the match does not count, the search goes on behind it
    const Flags& token = tokens_[found];
    if (token.special && !parse_special) continue;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip) {
      while (begin > done) {
        const std::size_t last = last_char(text.substr(0, begin));
        if (last < done || !unicode::is_whitespace(unicode::decode(text, last).code)) break;
        begin = last;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const auto next = unicode::decode(text, end);
        if (!unicode::is_whitespace(next.code)) break;
        end += next.length;
      }
    }
    begin = std::max(begin, done);  // an earlier token may have taken the white space this one starts with
    end = std::max(end, begin);
    if (begin > done) spans.push_back({done, begin, -1});
    spans.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), -1});
  return spans;
}

}  // namespace fovea
