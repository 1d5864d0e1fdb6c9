#include "server/anthropic/message_writer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/hash.h"
#include "base/json.h"

namespace fovea::server {
namespace {

std::string_view error_type(std::int32_t status) {
  switch (status) {
    case 400:
    case 405:
    case 415: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
  }
}

std::string error_json(const ApiError& error) {
  const std::string message = error.param.empty() || error.message.find(error.param) != std::string::npos
                                  ? error.message
                                  : error.param + ": " + error.message;
  return fmt::format("\"error\":{{\"type\":\"{}\",\"message\":{}}}", error_type(error.status), json_string(message));
}

// Input tokens leave out those that the cache had.
std::string usage_json(std::int64_t prompt, std::int64_t cached, std::int64_t completion) {
  return fmt::format(
      "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},\"output_tokens\":{}}}",
      prompt - cached, cached, completion);
}

}  // namespace

HttpResponse message_error(const ApiError& error, std::string_view request_id) {
  HttpResponse response = error_response(error.status, error.message, error.param, error.code);
  response.body =
      fmt::format("{{\"type\":\"error\",{},\"request_id\":{}}}", error_json(error), json_string(request_id));
  return response;
}

void MessageWriter::event(std::string* out, std::string_view type, std::string_view data) {
  fmt::format_to(std::back_inserter(*out), "event: {}\ndata: {{\"type\":\"{}\"{}{}}}\n\n", type, type,
                 data.empty() ? "" : ",", data);
}

void MessageWriter::begin(std::string* out) {
  event(
      out, "message_start",
      fmt::format("\"message\":{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[],"
                  "\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{}}}",
                  options_.id, json_string(options_.model), usage_json(options_.prompt_tokens, 0, 0)));
  event(out, "ping", "");
}

void MessageWriter::open_block(Kind kind, std::string_view start, std::string* out) {
  close_block(out);
  kind_ = kind;
  event(out, "content_block_start", fmt::format("\"index\":{},\"content_block\":{}", blocks_, start));
}

void MessageWriter::delta(std::string_view type, std::string_view member, std::string_view text, std::string* out) {
  event(out, "content_block_delta",
        fmt::format("\"index\":{},\"delta\":{{\"type\":\"{}\",\"{}\":{}}}", blocks_, type, member, json_string(text)));
}

void MessageWriter::close_block(std::string* out) {
  if (kind_ == Kind::kNone) return;
  std::string block;
  if (kind_ == Kind::kText) {
    block = fmt::format("{{\"type\":\"text\",\"text\":{}}}", json_string(text_));
  } else if (kind_ == Kind::kThinking) {
    const std::string signature = fmt::format("{:016x}", hash_string(text_));
    delta("signature_delta", "signature", signature, out);
    block =
        fmt::format("{{\"type\":\"thinking\",\"thinking\":{},\"signature\":\"{}\"}}", json_string(text_), signature);
  } else {
    // What was cut is no object, and clients take nothing else.
    const bool whole = text_.starts_with("{") && nlohmann::ordered_json::accept(text_);
    block = fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}", json_string(tool_id_),
                        json_string(tool_), whole ? text_ : "{}");
  }
  event(out, "content_block_stop", fmt::format("\"index\":{}", blocks_));
  content_ += (content_.empty() ? "" : ",") + block;
  text_.clear();
  kind_ = Kind::kNone;
  ++blocks_;
}

void MessageWriter::reasoning(std::string_view text, std::string* out) {
  if (kind_ != Kind::kThinking) {
    open_block(Kind::kThinking, R"({"type":"thinking","thinking":"","signature":""})", out);
  }
  text_ += text;
  delta("thinking_delta", "thinking", text, out);
}

void MessageWriter::text(std::string_view text, std::string_view, std::string* out) {
  if (kind_ != Kind::kText) open_block(Kind::kText, R"({"type":"text","text":""})", out);
  text_ += text;
  delta("text_delta", "text", text, out);
}

void MessageWriter::call(const ToolCall& call, std::string* out) {
  if (!call.id.empty()) {
    close_block(out);
    called_ = true;
    tool_ = call.name;
    tool_id_ = call.id.starts_with("call_") ? "toolu_" + call.id.substr(5) : call.id;
    open_block(Kind::kTool,
               fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{{}}}}", json_string(tool_id_),
                           json_string(tool_)),
               out);
  }
  if (call.arguments.empty()) return;
  text_ += call.arguments;
  delta("input_json_delta", "partial_json", call.arguments, out);
}

void MessageWriter::end(const AnswerEnd& end, std::string* out) {
  close_block(out);
  std::string reason = called_ ? "tool_use" : "end_turn";
  if (!end.stop_text.empty()) reason = "stop_sequence";
  if (end.finish == FinishReason::kLength) {
    reason = end.usage.completion_tokens >= options_.max_tokens ? "max_tokens" : "model_context_window_exceeded";
  }
  const std::string stop = fmt::format("\"stop_reason\":\"{}\",\"stop_sequence\":{}", reason,
                                       end.stop_text.empty() ? "null" : json_string(end.stop_text));
  const std::string usage = usage_json(end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens);
  event(out, "message_delta", fmt::format("\"delta\":{{{}}},\"usage\":{}", stop, usage));
  event(out, "message_stop", "");
  whole_ = fmt::format(
      "{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],{},\"usage\":{}}}",
      options_.id, json_string(options_.model), content_, stop, usage);
}

void MessageWriter::fail(const ApiError& error, std::string* out) { event(out, "error", error_json(error)); }

}  // namespace fovea::server
