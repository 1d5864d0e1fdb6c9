#include "server/openai/tool_calls.h"

#include <algorithm>

#include "base/json.h"

namespace fovea::server {
namespace {

constexpr std::size_t kMaxHeldCall = 64u << 10;  // bytes of a call whose name has not come

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// "\"a\\n\"" -> "a\n"; empty where it is no string.
std::string unquoted(const std::string& json) {
  if (!json.starts_with('"')) return {};
  const Json value = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

std::vector<ToolDelta> ToolCallParser::append(std::string_view text) {
  for (const char c : text) step(c);
  flush_arguments();
  return std::exchange(out_, {});
}

std::vector<ToolDelta> ToolCallParser::finish() {
  flush_arguments();
  if (num_calls_ == 0) content(where_ == Where::kText ? held_ : raw_);
  return std::exchange(out_, {});
}

void ToolCallParser::content(std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().call >= 0) out_.emplace_back();
  out_.back().content += text;
}

void ToolCallParser::step(char c) {
  switch (where_) {
    case Where::kText: text_step(c); break;
    case Where::kBetween: between_step(c); break;
    case Where::kCall: call_step(c); break;
  }
}

void ToolCallParser::text_step(char c) {
  held_ += c;
  if (is_space(c)) return;  // goes with what follows: a call takes the whitespace before it away
  const std::string_view opening = format_.opening;
  if (opening.empty()) {
    if (c == '{' && !spoken_) {
      held_.pop_back();
      raw_ = std::exchange(held_, {});
      begin_call();
      call_step(c);
      return;
    }
    spoken_ = true;
    content(std::exchange(held_, {}));
    return;
  }
  if (held_.ends_with(opening)) {
    raw_ = std::exchange(held_, {});
    called_ = false;
    where_ = Where::kBetween;
    return;
  }
  // The longest end that may begin the opening stays, and so does the whitespace before it.
  std::size_t keep = std::min(held_.size(), opening.size() - 1);
  while (!opening.starts_with(std::string_view(held_).substr(held_.size() - keep))) --keep;
  std::size_t end = held_.size() - keep;
  while (end > 0 && is_space(held_[end - 1])) --end;
  content(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
}

void ToolCallParser::between_step(char c) {
  raw_ += c;
  if (held_.empty()) {
    if (c == '{') {
      raw_.pop_back();
      begin_call();
      call_step(c);
      return;
    }
    if (is_space(c) || (format_.listed && (c == '[' || c == ',')) || (format_.opening.empty() && c == ';')) return;
  }
  held_ += c;
  const std::string_view closing = format_.listed ? std::string_view("]") : format_.closing;
  if (!closing.empty() && closing.starts_with(held_)) {
    if (held_ != closing) return;
    held_.clear();
    where_ = Where::kText;
    const std::string closed = std::exchange(raw_, {});
    if (!called_) content(closed);
    return;
  }
  // Neither a call nor the end of calls.
  held_.clear();
  where_ = Where::kText;
  spoken_ = true;
  const std::string text = std::exchange(raw_, {});
  if (called_) {
    for (const char again : text) text_step(again);  // the next opening may have begun; none is in it whole
  } else {
    content(text);
  }
}

void ToolCallParser::begin_call() {
  where_ = Where::kCall;
  part_ = Part::kKey;
  open_ = {};
  known_ = has_arguments_ = sent_arguments_ = quoted_ = false;
  key_.clear();
  value_.clear();
  pending_.clear();
}

void ToolCallParser::give_up() {
  where_ = Where::kText;
  spoken_ = true;
  content(std::exchange(raw_, {}));
}

// One character of the object. Depth 1 is the object itself; what is deeper belongs to a value.
void ToolCallParser::call_step(char c) {
  if (!known_) raw_ += c;
  if (raw_.size() > kMaxHeldCall) {
    give_up();
    return;
  }
  if (open_.depth == 0) {  // the brace that opens it
    open_.depth = 1;
    return;
  }
  if (!open_.in_string && open_.depth == 1 && (c == '}' || c == ',')) {
    end_value();
    if (where_ == Where::kCall && c == '}') end_call();
    return;
  }
  object_step(c);
}

void ToolCallParser::object_step(char c) {
  if (part_ == Part::kColon || (part_ == Part::kKey && !open_.in_string)) {
    if (is_space(c)) return;
    const char expected = part_ == Part::kColon ? ':' : '"';
    if (c != expected && !known_) {
      give_up();
      return;
    }
    if (part_ == Part::kColon) {
      part_ = Part::kValue;
      return;
    }
  }
  if (part_ == Part::kValue) {
    if (is_space(c)) return;
    begin_value(c);
  }
  const bool was_in_string = open_.in_string;
  open_.step(c);
  open_.depth = std::max(open_.depth, 1);  // what closes too much closes no call
  if (part_ == Part::kKey) {
    key_ += c;
    if (was_in_string && !open_.in_string) part_ = Part::kColon;
  } else if (part_ != Part::kOther) {
    value_ += c;
  }
}

void ToolCallParser::begin_value(char first) {
  const std::string key = unquoted(key_);
  value_.clear();
  part_ = Part::kOther;
  if (key == "name" && !known_) part_ = Part::kName;
  if ((key == "arguments" || key == "parameters") && !has_arguments_) {
    part_ = Part::kArguments;
    has_arguments_ = true;
    quoted_ = first == '"';
  }
}

// A value is whole.
void ToolCallParser::end_value() {
  const Part part = std::exchange(part_, Part::kKey);
  key_.clear();
  std::string value = std::exchange(value_, {});
  while (!value.empty() && is_space(value.back())) value.pop_back();
  if (part == Part::kArguments) pending_ += quoted_ ? unquoted(value) : value;
  if (part != Part::kName) return;
  const std::string name = unquoted(value);
  if (std::find(tools_.begin(), tools_.end(), name) == tools_.end()) {
    give_up();
    return;
  }
  known_ = true;
  raw_.clear();
  ToolDelta& delta = out_.emplace_back();
  delta.call = num_calls_++;
  delta.name = name;
}

void ToolCallParser::end_call() {
  if (!known_) {
    give_up();
    return;
  }
  if (pending_.empty() && !sent_arguments_) pending_ = "{}";
  flush_arguments();
  where_ = Where::kBetween;
  called_ = true;
}

// Passes on what came of the arguments, once the name is known.
void ToolCallParser::flush_arguments() {
  if (where_ != Where::kCall || !known_) return;
  if (part_ == Part::kArguments && !quoted_) {
    // Whitespace at the end may turn out to stand behind the value.
    std::size_t end = value_.size();
    while (end > 0 && is_space(value_[end - 1])) --end;
    pending_ += value_.substr(0, end);
    value_.erase(0, end);
  }
  if (pending_.empty()) return;
  const int call = num_calls_ - 1;
  if (out_.empty() || out_.back().call != call || !out_.back().name.empty()) out_.emplace_back().call = call;
  out_.back().arguments += std::exchange(pending_, {});
  sent_arguments_ = true;
}

}  // namespace fovea::server
