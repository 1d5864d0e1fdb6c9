#include "server/responses/reasoning_blob.h"

#include <fmt/format.h>

#include <cstdint>

#include "base/hash.h"

namespace fovea::server {
namespace {

constexpr std::string_view kVersion = "fovea1.";
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::size_t kHashDigits = 16;

std::string hash_of(std::string_view text) { return fmt::format("{:016x}", hash_bytes(text.data(), text.size())); }

}  // namespace

std::string seal_reasoning(std::string_view text) {
  std::string out = std::string(kVersion) + hash_of(text);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) out += kDigits[(bits >> (count - 6)) & 63];
  }
  if (count > 0) out += kDigits[(bits << (6 - count)) & 63];
  return out;
}

std::optional<std::string> open_reasoning(std::string_view blob) {
  if (!blob.starts_with(kVersion) || blob.size() < kVersion.size() + kHashDigits) return std::nullopt;
  blob.remove_prefix(kVersion.size());
  const std::string_view hash = blob.substr(0, kHashDigits);
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : blob.substr(kHashDigits)) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    text += static_cast<char>((bits >> count) & 255);
  }
  if (hash_of(text) != hash) return std::nullopt;
  return text;
}

}  // namespace fovea::server
