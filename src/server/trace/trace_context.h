// The W3C trace context that a request brings in its `traceparent` header. Used by OtlpExporter.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fovea::server {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16, the caller's span
  bool sampled = false;
};

// None where the header is not one, which then counts as absent. Versions to come may say more behind the flags.
std::optional<TraceContext> parse_traceparent(std::string_view header);

}  // namespace fovea::server
