#include "server/trace/trace_context.h"

#include <algorithm>

namespace fovea::server {
namespace {

// Lower case alone, as the standard has it.
bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  // version-trace-parent-flags: 2, 32, 16 and 2 digits
  constexpr std::size_t kLength = 55;
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const std::string_view flags = header.substr(53, 2);
  if (!is_hex(version) || version == "ff" || !is_hex(flags)) return std::nullopt;
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  TraceContext context{std::string(header.substr(3, 32)), std::string(header.substr(36, 16)), false};
  if (!is_id(context.trace_id) || !is_id(context.parent_id)) return std::nullopt;
  const char low = flags[1];
  context.sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) != 0;
  return context;
}

}  // namespace fovea::server
