#include "server/trace/request_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/quote.h"
#include "server/http/message.h"

namespace fovea::server {
namespace {

enum class SpanKind : std::uint8_t { kInternal = 1, kServer = 2 };

// A list of attributes while it grows.
class Attributes {
 public:
  void text(const char* key, const std::string& value) {
    if (value.empty()) return;
    comma();
    append_text_attribute(&json_, key, value);
  }
  void texts(const char* key, const std::string& value) {
    if (value.empty()) return;
    open(key);
    json_ += "{\"arrayValue\":{\"values\":[{\"stringValue\":";
    append_json_string(&json_, value);
    json_ += "}]}}}";
  }
  // 64-bit numbers are strings in OTLP's JSON.
  void integer(const char* key, std::int64_t value) {
    open(key);
    fmt::format_to(std::back_inserter(json_), "{{\"intValue\":\"{}\"}}}}", value);
  }
  void number(const char* key, double value) {
    open(key);
    fmt::format_to(std::back_inserter(json_), "{{\"doubleValue\":{}}}}}", value);
  }
  const std::string& json() const { return json_; }

 private:
  void comma() {
    if (!json_.empty()) json_.push_back(',');
  }
  void open(const char* key) {
    comma();
    fmt::format_to(std::back_inserter(json_), "{{\"key\":\"{}\",\"value\":", key);
  }
  std::string json_;
};

struct Span {
  std::string id, parent_id, name;
  SpanKind kind = SpanKind::kInternal;
  std::int64_t begin_ns = 0, end_ns = 0;
  Attributes attributes;
  std::string error;  // empty: none
};

void append_span(std::string* out, const Span& span, const std::string& trace_id, const std::string& trace_state) {
  fmt::format_to(std::back_inserter(*out), "{{\"traceId\":\"{}\",\"spanId\":\"{}\"", trace_id, span.id);
  if (!span.parent_id.empty()) fmt::format_to(std::back_inserter(*out), ",\"parentSpanId\":\"{}\"", span.parent_id);
  if (!trace_state.empty()) {
    *out += ",\"traceState\":";
    append_json_string(out, trace_state);
  }
  *out += ",\"name\":";
  append_json_string(out, span.name);
  fmt::format_to(
      std::back_inserter(*out),
      ",\"kind\":{},\"startTimeUnixNano\":\"{}\",\"endTimeUnixNano\":\"{}\",\"attributes\":[{}],\"status\":{{",
      static_cast<int>(span.kind), span.begin_ns, span.end_ns, span.attributes.json());
  if (!span.error.empty()) *out += "\"code\":2,\"message\":" + json_string(span.error);
  *out += "}}";
}

Attributes attributes_of(const RequestRecord& record) {
  Attributes out;
  out.text("http.request.method", record.method);
  out.text("url.path", shorten(record.path));
  out.integer("http.response.status_code", record.status);
  out.text("fovea.request.id", record.id);
  if (record.status >= 400) out.text("error.type", std::to_string(record.status));
  const GenerationReport& generation = record.generation;
  if (generation.submit_seconds < 0.0) return out;
  out.text("gen_ai.operation.name", generation.chat ? "chat" : "text_completion");
  out.text("gen_ai.provider.name", "fovea");
  out.text("gen_ai.request.model", generation.model);
  out.text("gen_ai.response.model", generation.model);
  out.text("gen_ai.response.id", generation.answer_id);
  if (generation.max_tokens > 0) out.integer("gen_ai.request.max_tokens", generation.max_tokens);
  out.number("gen_ai.request.temperature", static_cast<double>(generation.temperature));
  out.number("gen_ai.request.top_p", static_cast<double>(generation.top_p));
  if (generation.choices != 1) out.integer("gen_ai.request.choice.count", generation.choices);
  out.texts("gen_ai.response.finish_reasons", generation.finish);
  if (generation.completion_tokens >= 0) {
    out.integer("gen_ai.usage.input_tokens", generation.prompt_tokens);
    out.integer("gen_ai.usage.output_tokens", generation.completion_tokens);
    out.integer("gen_ai.usage.cache_read.input_tokens", generation.cached_tokens);
  }
  if (generation.first_token_seconds >= 0.0) {
    out.number("gen_ai.server.time_to_first_token", generation.first_token_seconds);
  }
  return out;
}

}  // namespace

void append_text_attribute(std::string* out, const char* key, const std::string& value) {
  fmt::format_to(std::back_inserter(*out), "{{\"key\":\"{}\",\"value\":{{\"stringValue\":", key);
  append_json_string(out, value);
  *out += "}}";
}

int append_request_spans(std::string* out, const RequestRecord& record, const SpanIds& ids, std::int64_t end_ns) {
  const GenerationReport& generation = record.generation;
  const std::int64_t begin_ns = end_ns - static_cast<std::int64_t>(1e9 * record.seconds);
  const auto at = [&](double seconds) {
    return std::min(end_ns, begin_ns + static_cast<std::int64_t>(1e9 * std::max(0.0, seconds)));
  };
  Span request{ids.spans[0], ids.parent_id, "", SpanKind::kServer, begin_ns, end_ns, attributes_of(record), ""};
  const bool generated = generation.submit_seconds >= 0.0;
  request.name = generated ? (generation.chat ? "chat " : "text_completion ") + generation.model
                           : record.method + " " + shorten(record.path);
  // What the client did wrong is no error of a server's span.
  if (record.status >= 500) request.error = fmt::format("{} {}", record.status, reason_phrase(record.status));
  append_span(out, request, ids.trace_id, record.tracestate);
  if (!generated) return 1;

  int count = 1;
  const auto part = [&](const char* name, double begin, std::int64_t part_end_ns) {
    out->push_back(',');
    const Span span{ids.spans[static_cast<std::size_t>(count)], ids.spans[0], name, SpanKind::kInternal, at(begin),
                    std::max(at(begin), part_end_ns),           {},           ""};
    append_span(out, span, ids.trace_id, record.tracestate);
    ++count;
  };
  // When it left the queue is known at its end; of requests that were cut short, not: then the parts are one.
  const bool admitted = generation.admit_seconds >= 0.0;
  const bool answered = generation.first_token_seconds >= 0.0;
  const std::int64_t first_token_ns = answered ? at(generation.first_token_seconds) : end_ns;
  if (admitted) {
    part("queue", generation.submit_seconds, at(generation.admit_seconds));
    part("prefill", generation.admit_seconds, first_token_ns);
  } else {
    part("queue and prefill", generation.submit_seconds, first_token_ns);
  }
  if (answered) part("decode", generation.first_token_seconds, end_ns);
  return count;
}

}  // namespace fovea::server
