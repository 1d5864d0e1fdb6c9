// What parsers of calls share: text that goes on as content until a tag begins, and where JSON ends. Used by the
// parsers beside this file.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace fovea::server {

inline constexpr std::string_view kSpace = " \n\t\r";

// Whether `tag` begins the text (1), may yet (0), or does not (-1).
inline int begins(std::string_view text, std::string_view tag) {
  if (text.starts_with(tag)) return 1;
  return tag.starts_with(text) ? 0 : -1;
}

inline void drop_space(std::string* text) { text->erase(0, std::min(text->find_first_not_of(kSpace), text->size())); }

// Takes what stands before the tag off the text, or, where none has come, what cannot belong to one. Whitespace before
// a tag goes with it: a call takes it away. found: the text begins with that whitespace and the tag.
inline std::string text_before(std::string* held, std::string_view tag, bool* found) {
  const std::size_t at = held->find(tag);
  *found = at != std::string::npos;
  std::size_t end = at;
  if (!*found) {
    std::size_t keep = std::min(held->size(), tag.size() - 1);
    while (!tag.starts_with(std::string_view(*held).substr(held->size() - keep))) --keep;
    end = held->size() - keep;
  }
  while (end > 0 && kSpace.find((*held)[end - 1]) != std::string_view::npos) --end;
  std::string text = held->substr(0, end);
  held->erase(0, end);
  return text;
}

// What of a JSON text that comes character by character is open.
struct OpenJson {
  int depth = 0;  // objects and arrays
  bool in_string = false, escaped = false;

  void step(char c) {
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
};

}  // namespace fovea::server
