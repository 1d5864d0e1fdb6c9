// Rewriting of kernels' sources; see rewrite.h.
#include "testing/simt/rewrite.h"

#include <fmt/format.h>

#include <cctype>
#include <stdexcept>
#include <vector>

namespace simt {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0 || c == '\\';
}  // ends of macros' lines

// Behind the comment or the literal that begins at `at`, or `at` where there is none.
std::size_t skip(std::string_view s, std::size_t at) {
  if (s.substr(at, 2) == "//") {
    const std::size_t end = s.find('\n', at);
    return end == std::string_view::npos ? s.size() : end;
  }
  if (s.substr(at, 2) == "/*") {
    const std::size_t end = s.find("*/", at + 2);
    return end == std::string_view::npos ? s.size() : end + 2;
  }
  const char quote = s[at];
  if (quote != '"' && quote != '\'') return at;
  if (quote == '\'' && at > 0 && std::isxdigit(static_cast<unsigned char>(s[at - 1])) != 0) return at;  // 1'000
  for (std::size_t i = at + 1; i < s.size(); ++i) {
    if (s[i] == '\\') {
      ++i;
    } else if (s[i] == quote) {
      return i + 1;
    }
  }
  throw std::runtime_error("a literal without an end");
}

// Behind the parenthesis that closes the one at `open`.
std::size_t closing(std::string_view s, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < s.size();) {
    if (const std::size_t next = skip(s, i); next != i) {
      i = next;
      continue;
    }
    if (s[i] == '(' || s[i] == '[' || s[i] == '{') ++depth;
    if (s[i] == ')' || s[i] == ']' || s[i] == '}') {
      if (--depth == 0) return i + 1;
    }
    ++i;
  }
  throw std::runtime_error("a parenthesis without an end");
}

// The parts between separators outside of brackets and literals. Words of `::` count as two separators.
std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < s.size();) {
    if (const std::size_t next = skip(s, i); next != i) {
      i = next;
    } else if (s[i] == '(' || s[i] == '[' || s[i] == '{') {
      i = closing(s, i);
    } else {
      if (s[i] == separator) {
        parts.push_back(s.substr(begin, i - begin));
        begin = i + 1;
      }
      ++i;
    }
  }
  parts.push_back(s.substr(begin));
  return parts;
}

bool is_blank(std::string_view s) {
  for (const char c : s) {
    if (!is_space(c)) return false;
  }
  return true;
}

// Operands `"=r"(x), "l"(p)`, and macros of them, as arguments of ::simt::ptx. Blanks stay, for the lines.
void append_operands(std::string_view list, std::string_view function, std::string& to, bool& first) {
  if (is_blank(list)) {
    to += list;
    return;
  }
  for (const std::string_view operand : split(list, ',')) {
    std::size_t at = 0;
    while (is_space(operand[at])) ++at;
    if (is_word(operand[at])) {  // a macro of operands, each by FOVEA_VARIABLE
      to += first ? "" : ",";
      first = false;
      to += operand;
      continue;
    }
    const std::size_t constraint = skip(operand, at);
    std::size_t open = constraint;
    while (is_space(operand[open])) ++open;
    if (operand[open] != '(') throw std::runtime_error(fmt::format("no operand: {}", operand));
    const std::size_t end = closing(operand, open);
    to += first ? "" : ",";
    first = false;
    to += fmt::format("{}::simt::{}({}, {}){}", operand.substr(0, at), function, operand.substr(at, constraint - at),
                      operand.substr(open, end - open), operand.substr(end));
  }
}

// `(text : outputs : inputs : clobbers)` of an assembly statement.
std::string call(std::string_view inside) {
  const std::vector<std::string_view> parts = split(inside, ':');
  std::string to = fmt::format("::simt::ptx({}, {{", parts[0]);
  bool first = true;
  if (parts.size() > 1) append_operands(parts[1], "variable", to, first);
  if (parts.size() > 2) append_operands(parts[2], "value", to, first);
  return to + "})";
}

}  // namespace

std::string rewrite(std::string_view s) {
  std::string to;
  for (std::size_t i = 0; i < s.size();) {
    if (const std::size_t next = skip(s, i); next != i) {
      to += s.substr(i, next - i);
      i = next;
      continue;
    }
    if (!is_word(s[i])) {
      to += s[i++];
      continue;
    }
    std::size_t end = i;
    while (end < s.size() && is_word(s[end])) ++end;
    const std::string_view word = s.substr(i, end - i);
    if (word == "asm") {
      std::size_t open = s.find('(', end);
      const std::size_t close = closing(s, open);
      to += call(s.substr(open + 1, close - open - 2));
      i = close;
    } else if (word == "extern" && s.substr(end).starts_with(" __shared__")) {
      // extern __shared__ __align__(1024) uint8_t name[];
      const std::size_t semicolon = s.find(';', end), bracket = s.rfind('[', semicolon);
      std::size_t name = bracket;
      while (is_word(s[name - 1])) --name;
      std::size_t type = name - 1, type_end = type;
      while (is_word(s[type - 1])) --type;
      const std::string_view type_name = s.substr(type, type_end - type);
      to += fmt::format("{0}* const {1} = reinterpret_cast<{0}*>(::simt::dynamic_shared())", type_name,
                        s.substr(name, bracket - name));
      i = semicolon;
    } else {
      to += word;
      i = end;
    }
  }
  return to;
}

std::string translation_unit(std::string_view name, std::string_view space, std::string_view entry,
                             std::string_view source) {
  return fmt::format(
      "#include \"testing/simt/device.h\"\n#define {1} {1}_{0}\n#define {2} {2}_{0}\n{3}\n"
      "extern \"C\" void simt_{0}(const void* const* params) {{ ::simt::call({2}, params); }}\n",
      name, space, entry, rewrite(source));
}

}  // namespace simt
