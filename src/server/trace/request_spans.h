// The spans of one request as OTLP's JSON: the request, and below it its time in the queue, in prefill and in decode.
// Attributes have the names of OpenTelemetry's semantic conventions for HTTP and for generative AI. Used by
// OtlpExporter.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "server/metrics/request_log.h"
#include "server/trace/trace_context.h"

namespace fovea::server {

struct SpanIds {
  std::string trace_id;              // 32 hexadecimal digits
  std::string parent_id;             // empty: the trace begins here
  std::array<std::string, 4> spans;  // 16 each: the request's, and those of its parts
};

// Appends the objects, parted by commas. end_ns: Unix time of the end of the request. Returns how many.
int append_request_spans(std::string* out, const RequestRecord& record, const SpanIds& ids, std::int64_t end_ns);

// {"key":..,"value":{"stringValue":..}}
void append_text_attribute(std::string* out, const char* key, const std::string& value);

}  // namespace fovea::server
