// AnswerParser: cuts the text of one answer into reasoning, content and calls of tools while it comes, each where it
// was asked for. Used by Generation.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/reasoning.h"
#include "server/openai/tool_calls.h"

namespace fovea::server {

class AnswerParser {
 public:
  // Null formats: nothing of that kind is looked for. tools, open: as ToolCallParser and ReasoningParser take them.
  AnswerParser(const ToolFormat* calls, std::vector<std::string> tools, const ReasoningFormat* reasoning, bool open) {
    if (calls != nullptr) calls_.emplace(*calls, std::move(tools));
    if (reasoning != nullptr) reasoning_.emplace(*reasoning, open);
  }

  // last: the answer ends with this text.
  std::vector<ToolDelta> append(std::string_view text, bool last) {
    std::vector<ToolDelta> out;
    if (!reasoning_.has_value()) {
      add_rest(text, last, &out);
      return out;
    }
    ReasoningParser::Piece piece = reasoning_->append(text);
    if (last) {
      ReasoningParser::Piece end = reasoning_->finish();
      piece.reasoning += end.reasoning;
      piece.rest += end.rest;
    }
    if (!piece.reasoning.empty()) {
      ToolDelta& delta = out.emplace_back();
      delta.content = std::move(piece.reasoning);
      delta.reasoning = true;
    }
    add_rest(piece.rest, last, &out);
    return out;
  }
  int num_calls() const { return calls_.has_value() ? calls_->num_calls() : 0; }
  bool reasons() const { return reasoning_.has_value() && reasoning_->inside(); }

 private:
  void add_rest(std::string_view text, bool last, std::vector<ToolDelta>* out) {
    if (!calls_.has_value()) {
      if (!text.empty()) out->emplace_back().content = text;
      return;
    }
    for (ToolDelta& piece : calls_->append(text)) out->push_back(std::move(piece));
    if (!last) return;
    for (ToolDelta& piece : calls_->finish()) out->push_back(std::move(piece));
  }

  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> calls_;
};

}  // namespace fovea::server
