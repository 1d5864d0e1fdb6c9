#include "base/quote.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace fovea {
namespace {

constexpr std::size_t kMostBytes = 200;

// Insertions, deletions and replacements that turn a into b.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Bytes of it that a message shows.
std::size_t shown(std::string_view text) {
  if (text.size() <= kMostBytes) return text.size();
  std::size_t end = kMostBytes;
  while (end > kMostBytes - 4 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace

std::string shorten(std::string_view text) {
  const std::size_t end = shown(text);
  if (end == text.size()) return std::string(text);
  return fmt::format("{}.. ({} bytes)", text.substr(0, end), text.size());
}

std::string quote(std::string_view text) {
  const std::size_t end = shown(text);
  if (end == text.size()) return fmt::format("\"{}\"", text);
  return fmt::format("\"{}..\" ({} bytes)", text.substr(0, end), text.size());
}

std::string shorten_inside(std::string message, std::string_view text) {
  if (shown(text) == text.size()) return message;
  const std::string cut = shorten(text);
  for (std::size_t at = 0; (at = message.find(text, at)) != std::string::npos; at += cut.size()) {
    message.replace(at, text.size(), cut);
  }
  return message;
}

std::string_view nearest_name(std::string_view text, std::span<const std::string> names) {
  std::string_view best;
  std::size_t fewest = text.size() / 4 + 1;  // a slip in four characters
  if (text.size() > kMostBytes) return best;
  for (const std::string& name : names) {
    const std::size_t count = edits(text, name);
    if (count > fewest || (count == fewest && !best.empty())) continue;
    fewest = count;
    best = name;
  }
  return best;
}

}  // namespace fovea
