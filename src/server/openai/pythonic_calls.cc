#include "server/openai/pythonic_calls.h"

#include <algorithm>
#include <utility>

#include "server/http/message.h"
#include "server/openai/held_text.h"

namespace fovea::server {
namespace {

// Llama 4 may put them around the list.
constexpr std::string_view kStart = "<|python_start|>";
constexpr std::string_view kEnd = "<|python_end|>";
constexpr std::size_t kMaxName = 256;  // bytes of a name of a function or parameter
constexpr std::string_view kNoName = "()[]{}=,'\"";

std::size_t skip_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

std::string_view trimmed(std::string_view text) { return text.substr(0, text.find_last_not_of(kSpace) + 1); }

}  // namespace

void PythonicCallParser::content(std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().call >= 0) out_.emplace_back();
  out_.back().content += text;
}

void PythonicCallParser::arguments(std::string_view text) {
  if (out_.empty() || out_.back().call != num_calls_ - 1 || !out_.back().name.empty()) {
    out_.emplace_back().call = num_calls_ - 1;
  }
  out_.back().arguments += text;
}

std::vector<ToolDelta> PythonicCallParser::append(std::string_view text) {
  held_ += text;
  while (!held_.empty() && step()) {
  }
  return std::exchange(out_, {});
}

std::vector<ToolDelta> PythonicCallParser::finish() {
  if (num_calls_ == 0) content(held_);
  held_.clear();
  return std::exchange(out_, {});
}

bool PythonicCallParser::step() {
  switch (where_) {
    case Where::kStart: return start_step();
    case Where::kList: return list_step();
    case Where::kArguments: return argument_step();
    case Where::kEnd: return end_step();
    case Where::kText:
      content(held_);
      held_.clear();
      return false;
  }
  return false;
}

// What is held, and all that follows, is text.
bool PythonicCallParser::no_call() {
  where_ = Where::kText;
  return true;
}

bool PythonicCallParser::start_step() {
  std::size_t at = skip_space(held_, 0);
  if (at == held_.size()) return false;
  const std::string_view rest = std::string_view(held_).substr(at);
  const int starts = begins(rest, kStart);
  if (starts == 0) return false;
  if (starts > 0) at = skip_space(held_, at + kStart.size());
  if (at == held_.size()) return false;
  if (held_[at] != '[') return no_call();
  at_ = at + 1;
  where_ = Where::kList;
  return true;
}

bool PythonicCallParser::list_step() {
  std::size_t begin = skip_space(held_, at_);
  if (num_calls_ > 0 && begin < held_.size() && held_[begin] == ',') begin = skip_space(held_, begin + 1);
  if (begin == held_.size()) return false;
  if (held_[begin] == ']' && num_calls_ > 0) {
    held_.erase(0, begin + 1);
    where_ = Where::kEnd;
    return true;
  }
  const std::size_t end = held_.find_first_of(kNoName, begin);
  if (end == std::string::npos && held_.size() - begin <= kMaxName) return false;
  const std::string name =
      end == std::string::npos || held_[end] != '(' ? "" : std::string(trimmed(held_.substr(begin, end - begin)));
  if (std::find(tools_.begin(), tools_.end(), name) == tools_.end()) return no_call();
  ToolDelta& delta = out_.emplace_back();
  delta.call = num_calls_++;
  delta.name = name;
  held_.erase(0, end + 1);
  at_ = 0;
  has_arguments_ = false;
  value_end_.reset();
  where_ = Where::kArguments;
  return true;
}

bool PythonicCallParser::argument_step() {
  const std::size_t begin = skip_space(held_, 0);
  if (begin == held_.size()) return false;
  const std::size_t equals = held_.find_first_of(kNoName, begin);
  if (equals == std::string::npos && held_.size() - begin <= kMaxName) return false;
  const bool named = equals != std::string::npos && held_[equals] == '=' && equals > begin;
  if (!named) {  // the end, or what should not stand here
    arguments(has_arguments_ ? "}" : "{}");
    const bool ends = held_[begin] == ')';
    held_.erase(0, ends ? begin + 1 : begin);
    where_ = ends ? Where::kList : Where::kText;
    return true;
  }
  const std::size_t length = value_end_.find(std::string_view(held_).substr(equals + 1));
  if (length == std::string_view::npos) return false;
  const std::string_view key = trimmed(std::string_view(held_).substr(begin, equals - begin));
  arguments((has_arguments_ ? ", " : "{") + json_string(key) + ": " +
            python_to_json(std::string_view(held_).substr(equals + 1, length)));
  has_arguments_ = true;
  value_end_.reset();
  const std::size_t end = equals + 1 + length;
  held_.erase(0, held_[end] == ',' ? end + 1 : end);
  return true;
}

// Behind the list: the tag that may close it, whitespace, then whatever the model adds.
bool PythonicCallParser::end_step() {
  drop_space(&held_);
  const int ends = begins(held_, kEnd);
  if (held_.empty() || ends == 0) return false;
  if (ends > 0) {
    held_.erase(0, kEnd.size());
    return true;
  }
  return no_call();
}

}  // namespace fovea::server
