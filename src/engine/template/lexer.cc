// Implementation of lexer.h.
#include "engine/template/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/template/text.h"
#include "engine/template/value.h"
#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

// Line ends become \n, and one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& message) const { throw TemplateError(line_, message); }

  void add(TokenKind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + to, '\n'));
    at_ = to;
  }

  bool starts(std::string_view what, std::size_t at) const {
    return std::string_view(text_).substr(at).starts_with(what);
  }

  std::size_t skip_spaces(std::size_t at) const {
    while (at < text_.size()) {
      const auto next = unicode::decode(text_, at);
      if (!is_space(next.code)) break;
      at += next.length;
    }
    return at;
  }

  // Data up to the next tag, and that tag.
  void root() {
    std::size_t tag = at_;
    while (tag < text_.size() && !(text_[tag] == '{' && tag + 1 < text_.size() &&
                                   (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#'))) {
      ++tag;
    }
    if (tag >= text_.size()) {
      add(TokenKind::kData, text_.substr(at_));
      advance(text_.size());
      return;
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() && (text_[tag + 2] == '-' || text_[tag + 2] == '+') ? text_[tag + 2] : ' ';
    std::string_view data(text_.data() + at_, tag - at_);
    if (sign == '-') {
      data = strip(data, {}, false, true);
    } else if (sign != '+' && kind != '{') {
      const std::size_t newline = data.rfind('\n');
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && skip_spaces(at_ + start) >= tag) data = data.substr(0, start);
    }
    if (!data.empty()) add(TokenKind::kData, std::string(data));
    advance(tag + (sign == ' ' ? 2 : 3));
    if (kind == '#') {
      comment();
    } else if (kind == '%' && raw()) {
      return;
    } else {
      add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
      inside(kind == '%');
    }
  }

  // Behind the end of a tag: -%} takes all white space along, %} one newline, +%} nothing.
  void close(std::size_t end, char sign, bool trims_newline) {
    std::size_t to = end;
    if (sign == '-') {
      to = skip_spaces(end);
    } else if (trims_newline && sign != '+' && end < text_.size() && text_[end] == '\n') {
      to = end + 1;
    }
    line_starting_ = to > 0 && text_[to - 1] == '\n';
    advance(to);
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) error("a comment is not closed, expected '#}'");
    const char before = end > at_ ? text_[end - 1] : ' ';
    close(end + 2, before == '-' || before == '+' ? before : ' ', true);
  }

  // {% raw %}: the text up to {% endraw %} is data. False if the tag is another one.
  bool raw() {
    std::size_t at = skip_spaces(at_);
    if (!starts("raw", at)) return false;
    at = skip_spaces(at + 3);
    const bool dash = starts("-", at);
    if (dash) ++at;
    if (!starts("%}", at)) return false;
    at += 2;
    if (dash) at = skip_spaces(at);
    const bool starting = text_[at - 1] == '\n';
    for (std::size_t end = text_.find("{%", at); end != std::string::npos; end = text_.find("{%", end + 2)) {
      std::size_t next = end + 2;
      const char sign = starts("-", next) || starts("+", next) ? text_[next++] : ' ';
      next = skip_spaces(next);
      if (!starts("endraw", next)) continue;
      next = skip_spaces(next + 6);
      const char last = starts("-", next) || starts("+", next) ? text_[next++] : ' ';
      if (!starts("%}", next)) continue;
      std::string_view data(text_.data() + at, end - at);
      if (sign == '-') {
        data = strip(data, {}, false, true);
      } else if (sign != '+') {
        const std::size_t newline = data.rfind('\n');
        const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
        if ((start > 0 || starting) && skip_spaces(at + start) >= end) data = data.substr(0, start);
      }
      if (!data.empty()) add(TokenKind::kData, std::string(data));
      close(next + 2, last, true);
      return true;
    }
    error("'raw' is not closed, expected '{% endraw %}'");
  }

  // The tokens of a tag, up to its end.
  void inside(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that wait for their end
    for (;;) {
      advance(skip_spaces(at_));
      if (at_ >= text_.size())
        error(block ? "a block tag is not closed, expected '%}'" : "a variable tag is not closed, expected '}}'");
      if (open.empty()) {
        const char sign = text_[at_];
        const bool signed_end = (sign == '-' || (block && sign == '+')) && starts(end, at_ + 1);
        if (signed_end || starts(end, at_)) {
          add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
          close(at_ + (signed_end ? 3 : 2), signed_end ? sign : ' ', block);
          return;
        }
      }
      const char c = text_[at_];
      const char32_t code = unicode::decode(text_, at_).code;
      if (c >= '0' && c <= '9') {
        number();
      } else if (unicode::is_word(code)) {
        std::size_t to = at_;
        while (to < text_.size()) {
          const auto next = unicode::decode(text_, to);
          if (!unicode::is_word(next.code)) break;
          to += next.length;
        }
        add(TokenKind::kName, text_.substr(at_, to - at_));
        advance(to);
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operation(open);
      }
    }
  }

  void operation(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (starts(two, at_)) {
        add(TokenKind::kOperator, std::string(two));
        advance(at_ + 2);
        return;
      }
    }
    const char c = text_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      error(std::string("unexpected character '") + text_.substr(at_, unicode::lead_length(c)) + "'");
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) error(std::string("unexpected '") + c + "'");
      if (open.back() != c) error(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  void number() {
    // Digits may be grouped by single underscores.
    const auto digits = [&](std::size_t at) {
      while (at < text_.size() &&
             (std::isdigit(static_cast<unsigned char>(text_[at])) ||
              (text_[at] == '_' && at + 1 < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at + 1]))))) {
        ++at;
      }
      return at;
    };
    std::size_t to = digits(at_);
    bool real = false;
    if (to + 1 < text_.size() && text_[to] == '.' && std::isdigit(static_cast<unsigned char>(text_[to + 1]))) {
      // "a.0.1" is two subscripts, not a subscript by a number with a point.
      if (tokens_.empty() || tokens_.back().kind != TokenKind::kOperator || tokens_.back().text != ".") {
        real = true;
        to = digits(to + 1);
      }
    }
    if (to < text_.size() && (text_[to] == 'e' || text_[to] == 'E')) {
      std::size_t exponent = to + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && std::isdigit(static_cast<unsigned char>(text_[exponent]))) {
        real = true;
        to = digits(exponent);
      }
    }
    std::string plain = text_.substr(at_, to - at_);
    plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
    add(real ? TokenKind::kFloat : TokenKind::kInteger, plain);
    Token& token = tokens_.back();
    const char* last = plain.data() + plain.size();
    if (real) {
      const auto parsed = std::from_chars(plain.data(), last, token.number);
      if (parsed.ec == std::errc::result_out_of_range) token.number = std::strtod(plain.c_str(), nullptr);
    } else if (std::from_chars(plain.data(), last, token.integer).ec != std::errc()) {
      error("integer " + plain.substr(0, 40) + " does not fit 64 bits");
    }
    advance(to);
  }

  char32_t hex(std::size_t at, std::size_t count) const {
    char32_t code = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const char c = at + i < text_.size() ? text_[at + i] : ' ';
      if (!std::isxdigit(static_cast<unsigned char>(c))) error("a string has an incomplete \\x, \\u or \\U escape");
      code = code * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) error("a string escape is no Unicode character");
    return code;
  }

  void string(char quote) {
    std::string value;
    std::size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= text_.size()) error("a string is not closed");
      const char c = text_[at];
      if (c == quote) break;
      if (c != '\\') {
        value.push_back(c);
        continue;
      }
      if (++at >= text_.size()) error("a string is not closed");
      const char next = text_[at];
      static constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
      const std::size_t known = kNames.find(next);
      if (known != std::string_view::npos) {
        value.push_back(kCodes[known]);
      } else if (next == '\n') {
        continue;
      } else if (next == 'x' || next == 'u' || next == 'U') {
        const std::size_t count = next == 'x' ? 2 : next == 'u' ? 4 : 8;
        unicode::append(value, hex(at + 1, count));
        at += count;
      } else if (next >= '0' && next <= '7') {
        char32_t code = 0;
        std::size_t used = 0;
        for (; used < 3 && at + used < text_.size() && text_[at + used] >= '0' && text_[at + used] <= '7'; ++used) {
          code = code * 8 + static_cast<char32_t>(text_[at + used] - '0');
        }
        unicode::append(value, code);
        at += used - 1;
      } else {  // unknown escapes stay as they are
        value.push_back('\\');
        value.push_back(next);
      }
    }
    add(TokenKind::kString, std::move(value));
    advance(at + 1);
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace fovea::jinja
