#include "server/responses/response_writer.h"

#include <fmt/format.h>

#include <ctime>
#include <iterator>
#include <utility>

#include "server/responses/reasoning_blob.h"

namespace fovea::server {
namespace {

std::string usage_json(const Usage& usage) {
  return fmt::format(
      "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":{},"
      "\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
      usage.prompt_tokens + usage.completion_tokens);
}

constexpr std::string_view kRunning =
    R"("status":"in_progress","completed_at":null,"error":null,"incomplete_details":null,"usage":null,)";

}  // namespace

void ResponseWriter::event(std::string* out, std::string_view type, std::string_view data) {
  fmt::format_to(std::back_inserter(*out), "event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{},{}}}\n\n", type,
                 type, sequence_++, data);
}

std::string ResponseWriter::response_json(std::string_view status, std::string_view details) const {
  const bool over = status != "in_progress";
  return fmt::format("{{\"id\":{},\"object\":\"response\",\"created_at\":{},{}{}\"model\":{},\"output\":[{}]}}",
                     json_string(options_.id), options_.created_unix_s, details, options_.echo,
                     json_string(options_.model), over ? output_ : "");
}

void ResponseWriter::begin(std::string* out) {
  const std::string data = "\"response\":" + response_json("in_progress", kRunning);
  event(out, "response.created", data);
  event(out, "response.in_progress", data);
}

std::string ResponseWriter::place() const {
  const Item& item = items_.back();
  const bool parts = item.kind == Kind::kMessage || item.kind == Kind::kReasoning;
  return fmt::format("\"item_id\":\"{}\",\"output_index\":{}{}", item.id, items_.size() - 1,
                     parts ? ",\"content_index\":0" : "");
}

std::string ResponseWriter::part_json(const Item& item, bool full) {
  if (item.kind == Kind::kReasoning) {
    return fmt::format("{{\"type\":\"reasoning_text\",\"text\":{}}}", json_string(full ? item.text : ""));
  }
  return fmt::format("{{\"type\":\"output_text\",\"text\":{},\"annotations\":[],\"logprobs\":[{}]}}",
                     json_string(full ? item.text : ""), full ? item.logprobs : "");
}

std::string ResponseWriter::item_json(const Item& item, std::string_view status, bool full) const {
  std::string out = fmt::format("{{\"id\":\"{}\",\"status\":\"{}\",", item.id, status);
  if (item.kind == Kind::kMessage) {
    return out + fmt::format("\"type\":\"message\",\"role\":\"assistant\",\"content\":[{}]}}",
                             full ? part_json(item, true) : "");
  }
  if (item.kind == Kind::kReasoning) {
    const bool sealed = full && options_.encrypted_reasoning;
    return out + fmt::format("\"type\":\"reasoning\",\"summary\":[],\"content\":[{}],\"encrypted_content\":{}}}",
                             full ? part_json(item, true) : "",
                             sealed ? json_string(seal_reasoning(item.text)) : "null");
  }
  const bool custom = item.kind == Kind::kCustom;
  out += fmt::format("\"type\":\"{}\",\"call_id\":{},\"name\":{},", custom ? "custom_tool_call" : "function_call",
                     json_string(item.call_id), json_string(item.tool.name));
  if (!item.tool.space.empty()) out += fmt::format("\"namespace\":{},", json_string(item.tool.space));
  return out + fmt::format("\"{}\":{}}}", custom ? "input" : "arguments", json_string(full ? item.text : ""));
}

void ResponseWriter::open_item(Item item, std::string* out) {
  if (open_) close_item("completed", out);
  static constexpr const char* kPrefixes[] = {"msg", "rs", "fc", "ctc"};
  const std::size_t index = items_.size();
  // Behind the "resp_" of the response's own.
  item.id = fmt::format("{}_{}{:02x}", kPrefixes[static_cast<std::size_t>(item.kind)],
                        std::string_view(options_.id).substr(options_.id.find('_') + 1), index);
  items_.push_back(std::move(item));
  open_ = true;
  const Item& opened = items_.back();
  event(out, "response.output_item.added",
        fmt::format("\"output_index\":{},\"item\":{}", index, item_json(opened, "in_progress", false)));
  if (opened.kind == Kind::kMessage || opened.kind == Kind::kReasoning) {
    event(out, "response.content_part.added", fmt::format("{},\"part\":{}", place(), part_json(opened, false)));
  }
}

void ResponseWriter::close_item(std::string_view status, std::string* out) {
  Item& item = items_.back();
  open_ = false;
  const std::string at = place();
  const std::string text = json_string(item.text);
  switch (item.kind) {
    case Kind::kMessage:
      event(out, "response.output_text.done", fmt::format("{},\"text\":{},\"logprobs\":[{}]", at, text, item.logprobs));
      break;
    case Kind::kReasoning: event(out, "response.reasoning_text.done", fmt::format("{},\"text\":{}", at, text)); break;
    case Kind::kFunction:
      event(out, "response.function_call_arguments.done",
            fmt::format("{},\"name\":{},\"arguments\":{}", at, json_string(item.tool.name), text));
      break;
    case Kind::kCustom:
      event(out, "response.custom_tool_call_input.done", fmt::format("{},\"input\":{}", at, text));
      break;
  }
  if (item.kind == Kind::kMessage || item.kind == Kind::kReasoning) {
    event(out, "response.content_part.done", fmt::format("{},\"part\":{}", at, part_json(item, true)));
  }
  const std::string json = item_json(item, status, true);
  event(out, "response.output_item.done", fmt::format("\"output_index\":{},\"item\":{}", items_.size() - 1, json));
  output_ += (output_.empty() ? "" : ",") + json;
}

void ResponseWriter::grow(std::string_view text, std::string* out) {
  if (text.empty()) return;
  Item& item = items_.back();
  item.text += text;
  static constexpr const char* kEvents[] = {"output_text", "reasoning_text", "function_call_arguments",
                                            "custom_tool_call_input"};
  event(out, fmt::format("response.{}.delta", kEvents[static_cast<std::size_t>(item.kind)]),
        fmt::format("{},\"delta\":{}", place(), json_string(text)));
}

void ResponseWriter::reasoning(std::string_view text, std::string* out) {
  if (!open_ || items_.back().kind != Kind::kReasoning) open_item(Item(Kind::kReasoning), out);
  grow(text, out);
}

void ResponseWriter::text(std::string_view text, std::string_view logprobs, std::string* out) {
  if (!open_ || items_.back().kind != Kind::kMessage) open_item(Item(Kind::kMessage), out);
  Item& item = items_.back();
  item.text += text;
  if (!logprobs.empty()) item.logprobs += (item.logprobs.empty() ? "" : ",") + std::string(logprobs);
  event(out, "response.output_text.delta",
        fmt::format("{},\"delta\":{},\"logprobs\":[{}]", place(), json_string(text), logprobs));
}

void ResponseWriter::call(const ToolCall& call, std::string* out) {
  if (!call.id.empty()) {
    const auto known = options_.tools.find(call.name);
    Item item(Kind::kFunction);
    item.tool = known == options_.tools.end() ? ResponseTool{call.name, "", false} : known->second;
    if (call.custom) item.kind = Kind::kCustom;
    item.call_id = call.id;
    open_item(std::move(item), out);
  }
  grow(call.arguments, out);
}

void ResponseWriter::end(const AnswerEnd& end, std::string* out) {
  const bool cut = end.finish == FinishReason::kLength;
  const char* status = cut ? "incomplete" : "completed";
  if (open_) close_item(status, out);
  const std::string details =
      fmt::format("\"status\":\"{}\",\"completed_at\":{},\"error\":null,\"incomplete_details\":{},\"usage\":{},",
                  status, cut ? "null" : fmt::format("{}", std::time(nullptr)),
                  cut ? "{\"reason\":\"max_output_tokens\"}" : "null", usage_json(end.usage));
  whole_ = response_json(status, details);
  event(out, cut ? "response.incomplete" : "response.completed", "\"response\":" + whole_);
}

void ResponseWriter::fail(const ApiError& error, std::string* out) {
  if (open_) close_item("incomplete", out);
  const std::string code = error.status == 429 ? "rate_limit_exceeded" : "server_error";
  const std::string details = fmt::format(
      "\"status\":\"failed\",\"completed_at\":null,\"error\":{{\"code\":\"{}\",\"message\":{}}},"
      "\"incomplete_details\":null,\"usage\":null,",
      code, json_string(error.message));
  event(out, "response.failed", "\"response\":" + response_json("failed", details));
}

HttpResponse ResponseWriter::refusal(const ApiError& error) const {
  return error_response(error.status, error.message, error.param, error.code);
}

}  // namespace fovea::server
