#include "server/openai/markup_calls.h"

#include <algorithm>
#include <utility>

#include "server/http/message.h"
#include "server/openai/held_text.h"
#include "server/openai/json_members.h"

namespace fovea::server {
namespace {

constexpr std::string_view kOpening = "<tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kEndParameter = "</parameter>";
constexpr std::string_view kEndFunction = "</function>";
constexpr std::string_view kClosing = "</tool_call>";
constexpr std::size_t kMaxName = 256;  // bytes of a name of a function or parameter

}  // namespace

void MarkupCallParser::content(std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().call >= 0) out_.emplace_back();
  out_.back().content += text;
}

ToolDelta& MarkupCallParser::arguments(std::string_view text) {
  if (out_.empty() || out_.back().call != num_calls_ - 1 || !out_.back().name.empty()) {
    out_.emplace_back().call = num_calls_ - 1;
  }
  out_.back().arguments += text;
  return out_.back();
}

// "12" -> 12 where the schema says integer; text stays text.
std::string MarkupCallParser::value_json(const std::string& key, std::string value) const {
  // What stands between a tag and the value: a newline, or what a grammar lets through in its place.
  if (!value.empty() && kSpace.find(value.front()) != std::string_view::npos) value.erase(0, 1);
  if (!value.empty() && kSpace.find(value.back()) != std::string_view::npos) value.pop_back();
  const nlohmann::json* schema = member(properties_, key.c_str());
  const bool is_text = schema != nullptr && text_of(*schema, "type") == "string";
  if (!is_text) {
    // Whitespace around what is no text means nothing.
    value.erase(value.find_last_not_of(kSpace) + 1);
    drop_space(&value);
    if (value == "True" || value == "False") return value == "True" ? "true" : "false";
    if (value == "None") return "null";
    if (nlohmann::json::accept(value)) return value;
  }
  return json_string(value);
}

std::vector<ToolDelta> MarkupCallParser::append(std::string_view text) {
  held_ += text;
  while (!held_.empty() && step()) {
  }
  return std::exchange(out_, {});
}

std::vector<ToolDelta> MarkupCallParser::finish() {
  // Behind a call it was whitespace or a further call, cut, and is dropped.
  if (num_calls_ == 0) content(held_);
  held_.clear();
  return std::exchange(out_, {});
}

bool MarkupCallParser::step() {
  switch (where_) {
    case Where::kText: return text_step();
    case Where::kCall: return call_step();
    case Where::kParameters: return parameter_step();
    case Where::kClosing: {
      drop_space(&held_);
      const int closes = begins(held_, kClosing);
      if (closes == 0) return false;
      if (closes > 0) held_.erase(0, kClosing.size());
      where_ = Where::kText;
      return !held_.empty();
    }
  }
  return false;
}

bool MarkupCallParser::text_step() {
  bool found = false;
  content(text_before(&held_, kOpening, &found));
  if (found) where_ = Where::kCall;
  return found;
}

bool MarkupCallParser::call_step() {
  const std::size_t opened = held_.find(kOpening) + kOpening.size();
  const std::size_t begin = std::min(held_.find_first_not_of(kSpace, opened), held_.size());
  const std::string_view rest = std::string_view(held_).substr(begin);
  const int opens = begins(rest, kFunction);
  const std::size_t end = opens > 0 ? rest.find('>') : std::string_view::npos;
  if (opens == 0 || (opens > 0 && end == std::string_view::npos && rest.size() < kMaxName)) return false;
  const std::string name =
      end == std::string_view::npos ? "" : std::string(rest.substr(kFunction.size(), end - kFunction.size()));
  const auto tool = std::find_if(tools_.begin(), tools_.end(), [&](const Tool& one) { return one.name == name; });
  if (tool == tools_.end()) {
    content(std::string_view(held_).substr(0, opened));
    held_.erase(0, opened);
    where_ = Where::kText;
    return true;
  }
  const nlohmann::json schema = nlohmann::json::parse(tool->parameters, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* properties = member(schema, "properties");
  properties_ = properties == nullptr ? nlohmann::json() : *properties;
  has_parameters_ = false;
  ToolDelta& delta = out_.emplace_back();
  delta.call = num_calls_++;
  delta.name = name;
  held_.erase(0, begin + end + 1);
  where_ = Where::kParameters;
  return true;
}

bool MarkupCallParser::parameter_step() {
  drop_space(&held_);
  const int ends = begins(held_, kEndFunction);
  const int opens = begins(held_, kParameter);
  if (ends == 0 || opens == 0) return false;
  if (opens < 0) {  // the end, or what should not stand here
    arguments(has_parameters_ ? "}" : "{}");
    if (ends > 0) held_.erase(0, kEndFunction.size());
    where_ = Where::kClosing;
    return true;
  }
  const std::size_t name_end = held_.find('>');
  const std::size_t value_end = held_.find(kEndParameter);
  if (name_end == std::string::npos || value_end == std::string::npos || value_end < name_end) return false;
  const std::string key = held_.substr(kParameter.size(), name_end - kParameter.size());
  const std::string value = held_.substr(name_end + 1, value_end - name_end - 1);
  arguments((has_parameters_ ? ", " : "{") + json_string(key) + ": " + value_json(key, value));
  has_parameters_ = true;
  held_.erase(0, value_end + kEndParameter.size());
  return true;
}

}  // namespace fovea::server
