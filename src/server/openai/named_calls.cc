#include "server/openai/named_calls.h"

#include <algorithm>
#include <utility>

namespace fovea::server {
namespace {

constexpr std::string_view kOpening = "[TOOL_CALLS]";
constexpr std::string_view kId = "[CALL_ID]";
constexpr std::string_view kArguments = "[ARGS]";
constexpr std::size_t kMaxName = 256;  // bytes of a name and an id

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

void NamedCallParser::content(std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().call >= 0) out_.emplace_back();
  out_.back().content += text;
}

void NamedCallParser::arguments(std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().call != num_calls_ - 1 || !out_.back().name.empty()) {
    out_.emplace_back().call = num_calls_ - 1;
  }
  out_.back().arguments += text;
}

std::vector<ToolDelta> NamedCallParser::append(std::string_view text) {
  held_ += text;
  while (!held_.empty() && step()) {
  }
  return std::exchange(out_, {});
}

std::vector<ToolDelta> NamedCallParser::finish() {
  if (num_calls_ == 0) content(held_);
  held_.clear();
  return std::exchange(out_, {});
}

bool NamedCallParser::step() {
  switch (where_) {
    case Where::kText: {
      bool found = false;
      content(text_before(&held_, kOpening, &found));
      if (found) where_ = Where::kName;
      return found;
    }
    case Where::kName: return name_step();
    case Where::kArguments: return arguments_step();
  }
  return false;
}

bool NamedCallParser::name_step() {
  const std::size_t opened = held_.find(kOpening) + kOpening.size();
  const std::string_view rest = std::string_view(held_).substr(opened);
  const std::size_t at = rest.find(kArguments);
  // A name has no brace and no quote: JSON behind the opening is of the older form.
  const bool may_come =
      at == std::string_view::npos && rest.size() < kMaxName && rest.find_first_of("{\"") == rest.npos;
  if (may_come) return false;
  const std::string_view before = at == std::string_view::npos ? std::string_view() : rest.substr(0, at);
  const std::string name(trimmed(before.substr(0, before.find(kId))));
  if (std::find(tools_.begin(), tools_.end(), name) == tools_.end()) {
    content(std::string_view(held_).substr(0, opened));
    held_.erase(0, opened);
    where_ = Where::kText;
    return true;
  }
  ToolDelta& delta = out_.emplace_back();
  delta.call = num_calls_++;
  delta.name = name;
  held_.erase(0, opened + at + kArguments.size());
  where_ = Where::kArguments;
  open_ = {};
  return true;
}

bool NamedCallParser::arguments_step() {
  if (open_.depth == 0) {
    drop_space(&held_);
    if (held_.empty()) return false;
    if (held_.front() != '{') {  // none
      arguments("{}");
      where_ = Where::kText;
      return true;
    }
  }
  for (std::size_t i = 0; i < held_.size(); ++i) {
    open_.step(held_[i]);
    if (open_.depth > 0) continue;
    arguments(std::string_view(held_).substr(0, i + 1));
    held_.erase(0, i + 1);
    where_ = Where::kText;
    return true;
  }
  arguments(held_);
  held_.clear();
  return false;
}

}  // namespace fovea::server
