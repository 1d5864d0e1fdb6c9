// String operations with Python's meaning (code points, Unicode white space), for the lexer, the filters and the string
// methods of templates. All text is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jinja {

bool is_space(char32_t code);  // str.isspace of one character
// Removes white space from the ends, or with use_chars the characters of `chars`.
std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right, bool use_chars = false);
std::size_t code_points(std::string_view text);
// Byte offset of code point number `index` (the size of the text if it has fewer).
std::size_t offset_of(std::string_view text, std::size_t index);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);         // str.title
std::string title_filter(std::string_view text);  // the filter of the same name splits words differently
// Position of `what` in `text` from `from` on, npos if it is not there. Linear time whatever the text.
std::size_t find(std::string_view text, std::string_view what, std::size_t from = 0);
// At most `count` replacements; negative: all.
std::string replace(std::string_view text, std::string_view what, std::string_view with, std::int64_t count);
std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t most);
std::vector<std::string_view> split_spaces(std::string_view text, std::int64_t most);
std::vector<std::string_view> split_from_right(std::string_view text, std::string_view separator, std::int64_t most);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// The is... family of str: "isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper", "isnumeric", "isdecimal".
bool classify(std::string_view text, std::string_view which);
std::string escape_html(std::string_view text);

}  // namespace fovea::jinja
