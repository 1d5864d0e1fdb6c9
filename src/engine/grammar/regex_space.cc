#include "engine/grammar/regex_space.h"

namespace fovea {
namespace {

// Tab, line feed, vertical tab, form feed, carriage return, the byte order mark, line and paragraph separator, and all
// of Unicode's category Zs.
constexpr std::string_view kSpaces =
    R"(\u0009-\u000d\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff)";
constexpr std::string_view kOthers =
    R"(\u0000-\u0008\u000e-\u001f\u0021-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e)"
    R"(\u2060-\u2fff\u3001-\ufefe\uff00-\u{10ffff})";

}  // namespace

std::string with_written_spaces(std::string_view regex) {
  std::string out;
  bool in_class = false;
  bool dash = false;  // the latest, in a class, is a `-` that is no escape
  for (std::size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c != '\\' || i + 1 == regex.size()) {
      const bool opens = c == '[' && !in_class;
      dash = in_class && c == '-';
      in_class = opens || (in_class && c != ']');
      out += c;
      if (opens && i + 1 < regex.size() && regex[i + 1] == '^') out += regex[++i];
      continue;
    }
    const char escaped = regex[++i];
    if (escaped != 's' && escaped != 'S') {
      out += {c, escaped};
    } else if (!in_class) {
      out.append(escaped == 's' ? "[" : "[^").append(kSpaces) += ']';
    } else {
      // Beside a class a dash is no range.
      if (dash) out.insert(out.size() - 1, 1, '\\');
      out += escaped == 's' ? kSpaces : kOthers;
      if (i + 2 < regex.size() && regex[i + 1] == '-' && regex[i + 2] != ']') {
        out += "\\-";
        ++i;
      }
    }
    dash = false;
  }
  return out;
}

}  // namespace fovea
