// Implementation of text.h.
#include "engine/template/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT; }

void append_upper(std::string& out, char32_t code) {
  if (code == 0xDF) {
    out.append("SS");
  } else {
    unicode::append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_title(std::string& out, char32_t code) {
  if (code == 0xDF) {
    out.append("Ss");
  } else {
    unicode::append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
  }
}

template <typename Function>
void each(std::string_view text, Function&& function) {
  for (std::size_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    function(next.code, at, next.length);
    at += next.length;
  }
}

std::size_t last_char(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool is_line_end(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

bool is_space(char32_t code) { return unicode::is_whitespace(code) || (code >= 0x1C && code <= 0x1F); }

std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right, bool use_chars) {
  const auto drops = [&](std::size_t at) {
    const auto next = unicode::decode(text, at);
    return use_chars ? chars.find(text.substr(at, next.length)) != std::string_view::npos : is_space(next.code);
  };
  while (left && !text.empty() && drops(0)) text.remove_prefix(unicode::lead_length(text[0]));
  while (right && !text.empty()) {
    const std::size_t last = last_char(text);
    if (!drops(last)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t offset_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += unicode::lead_length(text[at]);
    --index;
  }
  return std::min(at, text.size());
}

std::string upper(std::string_view text) {
  std::string out;
  each(text, [&](char32_t code, std::size_t, std::size_t) { append_upper(out, code); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  each(text, [&](char32_t code, std::size_t at, std::size_t length) {
    // Greek capital sigma is final (U+03C2) behind a letter and not before one.
    if (code == 0x3A3) {
      const bool after = at > 0 && is_cased(unicode::decode(text, last_char(text.substr(0, at))).code);
      const bool before = at + length < text.size() && is_cased(unicode::decode(text, at + length).code);
      unicode::append(out, after && !before ? 0x3C2 : 0x3C3);
    } else {
      unicode::append_lower(out, code);
    }
  });
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  std::string out;
  const auto first = unicode::decode(text, 0);
  append_title(out, first.code);
  return out.append(lower(text.substr(first.length)));
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  each(text, [&](char32_t code, std::size_t, std::size_t) {
    if (in_word) {
      unicode::append_lower(out, code);
    } else {
      append_title(out, code);
    }
    in_word = is_cased(code);
  });
  return out;
}

std::string title_filter(std::string_view text) {
  std::string out;
  bool in_word = false;
  each(text, [&](char32_t code, std::size_t, std::size_t) {
    const bool separator = code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || is_space(code);
    if (in_word && !separator) {
      unicode::append_lower(out, code);
    } else {
      append_upper(out, code);
    }
    in_word = !separator;
  });
  return out;
}

std::size_t find(std::string_view text, std::string_view what, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::string replace(std::string_view text, std::string_view what, std::string_view with, std::int64_t count) {
  std::string out;
  if (what.empty()) {  // Python puts the text before every character and at the end
    each(text, [&](char32_t, std::size_t at, std::size_t length) {
      if (count != 0) {
        out.append(with);
        --count;
      }
      out.append(text.substr(at, length));
    });
    if (count != 0) out.append(with);
    return out;
  }
  std::size_t done = 0;
  for (; count != 0; --count) {
    const std::size_t found = find(text, what, done);
    if (found == std::string_view::npos) break;
    out.append(text.substr(done, found - done)).append(with);
    done = found + what.size();
  }
  return out.append(text.substr(done));
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t most) {
  std::vector<std::string_view> parts;
  std::size_t done = 0;
  for (; most != 0; --most) {
    const std::size_t found = find(text, separator, done);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(done, found - done));
    done = found + separator.size();
  }
  parts.push_back(text.substr(done));
  return parts;
}

std::vector<std::string_view> split_spaces(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> parts;
  for (;;) {
    text = strip(text, {}, true, false);
    if (text.empty()) return parts;
    if (most-- == 0) {
      parts.push_back(text);
      return parts;
    }
    std::size_t end = 0;
    while (end < text.size()) {
      const auto next = unicode::decode(text, end);
      if (is_space(next.code)) break;
      end += next.length;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<std::string_view> split_from_right(std::string_view text, std::string_view separator, std::int64_t most) {
  std::vector<std::string_view> parts;
  if (most < 0) return split(text, separator, most);
  for (; most != 0; --most) {
    const std::size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    if (!is_line_end(next.code)) {
      at += next.length;
      continue;
    }
    const std::size_t end = at;
    at += next.length;
    if (next.code == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool classify(std::string_view text, std::string_view which) {
  if (which == "islower" || which == "isupper") {
    const bool want_lower = which == "islower";
    bool any = false, wrong = false;
    each(text, [&](char32_t code, std::size_t, std::size_t) {
      any = any || (want_lower ? is_lower(code) : is_upper(code));
      wrong = wrong || (is_cased(code) && !(want_lower ? is_lower(code) : is_upper(code)));
    });
    return any && !wrong;
  }
  bool all = !text.empty();
  each(text, [&](char32_t code, std::size_t, std::size_t) {
    const auto kind = category(code);
    const bool letter = kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT ||
                        kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
    const bool decimal = kind == UTF8PROC_CATEGORY_ND;
    const bool numeric = unicode::is_numeric(code);
    if (which == "isdigit" || which == "isdecimal") {
      all = all && decimal;
    } else if (which == "isnumeric") {
      all = all && numeric;
    } else if (which == "isalpha") {
      all = all && letter;
    } else if (which == "isalnum") {
      all = all && (letter || numeric);
    } else {
      all = all && is_space(code);
    }
  });
  return all;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out.append("&amp;"); break;
      case '<': out.append("&lt;"); break;
      case '>': out.append("&gt;"); break;
      case '"': out.append("&#34;"); break;
      case '\'': out.append("&#39;"); break;
      default: out.push_back(c);
    }
  }
  return out;
}

}  // namespace fovea::jinja
