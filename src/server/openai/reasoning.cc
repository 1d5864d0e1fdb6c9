#include "server/openai/reasoning.h"

#include <algorithm>

namespace fovea::server {
namespace {

constexpr ReasoningFormat kThink = {"think", "<think>", "</think>"};
constexpr ReasoningFormat kMistral = {"mistral", "[THINK]", "[/THINK]"};

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

const ReasoningFormat* reasoning_format_of(std::string_view chat_template) {
  for (const ReasoningFormat* format : {&kThink, &kMistral}) {
    // Templates that leave reasoning out of old turns look for the closing tag.
    if (chat_template.find(format->closing) != std::string_view::npos) return format;
  }
  return nullptr;
}

const ReasoningFormat* reasoning_format_named(std::string_view name) {
  for (const ReasoningFormat* format : {&kThink, &kMistral}) {
    if (format->name == name) return format;
  }
  return nullptr;
}

ReasoningParser::Piece ReasoningParser::append(std::string_view text) {
  Piece out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (where_ == Where::kRest) {
      out.rest += text.substr(i);
      break;
    }
    step(text[i], &out);
  }
  return out;
}

ReasoningParser::Piece ReasoningParser::finish() {
  Piece out;
  if (where_ == Where::kBefore) out.rest = std::move(held_);
  if (where_ == Where::kInside) {
    while (!held_.empty() && is_space(held_.back())) held_.pop_back();
    out.reasoning = std::move(held_);
  }
  held_.clear();
  return out;
}

void ReasoningParser::step(char c, Piece* out) {
  if (where_ == Where::kTrailing) {
    if (is_space(c)) return;
    where_ = Where::kRest;
    out->rest += c;
    return;
  }
  if (where_ == Where::kBefore) {
    held_ += c;
    const std::size_t begin = held_.find_first_not_of(" \n\t\r");
    if (begin == std::string::npos) return;
    const std::string_view tag = std::string_view(held_).substr(begin);
    if (tag == format_.opening) {
      where_ = Where::kLeading;
    } else if (format_.opening.starts_with(tag)) {
      return;
    } else {
      where_ = Where::kRest;
      out->rest += held_;
    }
    held_.clear();
    return;
  }
  if (where_ == Where::kLeading) {
    if (is_space(c)) return;
    where_ = Where::kInside;
  }
  held_ += c;
  if (is_space(c)) return;  // the closing tag takes the whitespace before it away
  if (held_.ends_with(format_.closing)) {
    held_.resize(held_.size() - format_.closing.size());
    while (!held_.empty() && is_space(held_.back())) held_.pop_back();
    out->reasoning += held_;
    held_.clear();
    where_ = Where::kTrailing;
    return;
  }
  std::size_t keep = std::min(held_.size(), format_.closing.size() - 1);
  while (!format_.closing.starts_with(std::string_view(held_).substr(held_.size() - keep))) --keep;
  std::size_t end = held_.size() - keep;
  if (keep > 0) {
    while (end > 0 && is_space(held_[end - 1])) --end;
  }
  out->reasoning.append(held_, 0, end);
  held_.erase(0, end);
}

}  // namespace fovea::server
