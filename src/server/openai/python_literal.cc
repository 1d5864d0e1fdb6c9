#include "server/openai/python_literal.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "server/http/message.h"
#include "server/openai/held_text.h"

namespace fovea::server {
namespace {

constexpr int kMaxDepth = 64;

// Bytes that open a string at `at`: 3 for triple quotes, else 1.
std::size_t quotes_at(std::string_view text, std::size_t at) {
  return text.substr(at).starts_with(std::string(3, text[at])) ? 3 : 1;
}

bool closes(std::string_view text, std::size_t at, char quote, std::size_t quotes) {
  return text.substr(at).starts_with(std::string(quotes, quote));
}

void append_utf8(std::uint32_t code, std::string* out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  if (code < 0x80) {
    *out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char kLead[] = {0, 0xc0, 0xe0, 0xf0};
  *out += static_cast<char>(kLead[more] | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) *out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // The whole text as one value; false where it is none.
  bool all(std::string* out) {
    if (!value(0, out)) return false;
    space();
    return at_ == text_.size();
  }

 private:
  void space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  bool ended() const { return at_ >= text_.size(); }

  bool value(int depth, std::string* out) {
    space();
    if (ended() || depth > kMaxDepth) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') {
      std::string text;
      if (!string(&text)) return false;
      *out += json_string(text);
      return true;
    }
    if (c == '[') return list(']', depth, out);
    if (c == '(') return list(')', depth, out);
    if (c == '{') return dict(depth, out);
    return word(out);
  }

  bool word(std::string* out) {
    const std::size_t end = std::min(text_.find_first_of(",:]}) \n\t\r", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "true") {
      *out += "true";
    } else if (word == "False" || word == "false") {
      *out += "false";
    } else if (word == "None" || word == "null") {
      *out += "null";
    } else if (word.find_first_not_of("0123456789+-.eE") == std::string_view::npos && nlohmann::json::accept(word)) {
      *out += word;
    } else {
      return false;
    }
    return true;
  }

  bool list(char closing, int depth, std::string* out) {
    *out += '[';
    ++at_;
    for (bool first = true;; first = false) {
      space();
      if (!ended() && text_[at_] == closing) break;
      if (!first) *out += ", ";
      if (!value(depth + 1, out)) return false;
      space();
      if (!ended() && text_[at_] == ',') {
        ++at_;
      } else if (ended() || text_[at_] != closing) {
        return false;
      }
    }
    ++at_;
    *out += ']';
    return true;
  }

  bool dict(int depth, std::string* out) {
    *out += '{';
    ++at_;
    for (bool first = true;; first = false) {
      space();
      if (!ended() && text_[at_] == '}') break;
      if (!first) *out += ", ";
      std::string key;
      if (!value(depth + 1, &key)) return false;
      *out += key.starts_with('"') ? key : json_string(key);
      space();
      if (ended() || text_[at_] != ':') return false;
      ++at_;
      *out += ": ";
      if (!value(depth + 1, out)) return false;
      space();
      if (!ended() && text_[at_] == ',') {
        ++at_;
      } else if (ended() || text_[at_] != '}') {
        return false;
      }
    }
    ++at_;
    *out += '}';
    return true;
  }

  bool string(std::string* out) {
    const char quote = text_[at_];
    const std::size_t quotes = quotes_at(text_, at_);
    at_ += quotes;
    while (!ended() && !closes(text_, at_, quote, quotes)) {
      if (text_[at_] != '\\' || at_ + 1 >= text_.size()) {
        *out += text_[at_++];
        continue;
      }
      escape(out);
    }
    if (ended()) return false;
    at_ += quotes;
    return true;
  }

  void escape(std::string* out) {
    const char c = text_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 'n': *out += '\n'; return;
      case 't': *out += '\t'; return;
      case 'r': *out += '\r'; return;
      case 'b': *out += '\b'; return;
      case 'f': *out += '\f'; return;
      case '\\':
      case '/':
      case '"':
      case '\'': *out += c; return;
      case '\n': return;
      case 'x': return code(2, "\\x", out);
      case 'u': return code(4, "\\u", out);
      case 'U': return code(8, "\\U", out);
      default: *out += '\\'; *out += c;
    }
  }

  // A character by its number; as it stands where that is no number.
  void code(std::size_t digits, std::string_view as_is, std::string* out) {
    std::uint32_t number = 0;
    if (!hex(at_, digits, &number)) {
      *out += as_is;
      return;
    }
    at_ += digits;
    std::uint32_t low = 0;  // JSON writes characters beyond 16 bits as two
    const bool high = number >= 0xd800 && number < 0xdc00 && text_.substr(at_).starts_with("\\u");
    if (high && hex(at_ + 2, 4, &low) && low >= 0xdc00 && low < 0xe000) {
      at_ += 6;
      number = 0x10000 + ((number - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(number, out);
  }

  bool hex(std::size_t at, std::size_t digits, std::uint32_t* number) const {
    if (at + digits > text_.size()) return false;
    *number = 0;
    for (const char c : text_.substr(at, digits)) {
      const std::size_t digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (digit == std::string_view::npos) return false;
      *number = *number * 16 + static_cast<std::uint32_t>(digit);
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t PythonValueEnd::find(std::string_view text) {
  while (at_ < text.size()) {
    const char c = text[at_];
    if (quotes_ != 0) {
      if (c == '\\') {
        if (at_ + 1 == text.size()) return std::string_view::npos;
        at_ += 2;
      } else if (c != quote_) {
        ++at_;
      } else if (closes(text, at_, quote_, quotes_)) {
        at_ += quotes_;
        quotes_ = 0;
      } else if (text.size() - at_ < quotes_) {
        return std::string_view::npos;
      } else {
        ++at_;
      }
      continue;
    }
    if (c == '"' || c == '\'') {
      if (text.size() - at_ < 3) return std::string_view::npos;  // whether three open it
      quote_ = c;
      quotes_ = quotes_at(text, at_);
      at_ += quotes_;
      continue;
    }
    if (depth_ == 0 && (c == ',' || c == ')' || c == ']' || c == '}')) return at_;
    if (c == '[' || c == '(' || c == '{') ++depth_;
    if (c == ']' || c == ')' || c == '}') --depth_;
    ++at_;
  }
  return std::string_view::npos;
}

std::string python_to_json(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  std::string out;
  if (Reader(text).all(&out) && nlohmann::json::accept(out)) return out;
  return json_string(std::string(text));
}

}  // namespace fovea::server
