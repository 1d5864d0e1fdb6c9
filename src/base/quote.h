// What a user wrote, as error messages repeat it. Called by whoever refuses a name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fovea {

// The text, cut to some 200 bytes (between characters of UTF-8) and followed by how long it was.
std::string shorten(std::string_view text);
// "text" in quotes, cut like that.
std::string quote(std::string_view text);
// A message that somebody else wrote, with `text` in it cut like that.
std::string shorten_inside(std::string message, std::string_view text);

// The name nearest to `text` by single-character edits, or empty where none is near enough to be meant.
std::string_view nearest_name(std::string_view text, std::span<const std::string> names);

}  // namespace fovea
