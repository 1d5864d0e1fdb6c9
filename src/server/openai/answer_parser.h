// AnswerParser: cuts the text of one answer into reasoning, content and calls of tools while it comes, each where it
// was asked for. Used by Generation.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/markup_calls.h"
#include "server/openai/reasoning.h"
#include "server/openai/tool_calls.h"

namespace fovea::server {

class AnswerParser {
 public:
  // Null formats: nothing of that kind is looked for. tools, open: as ToolCallParser and ReasoningParser take them.
  AnswerParser(const ToolFormat* calls, const std::vector<Tool>& tools, const ReasoningFormat* reasoning, bool open) {
    if (calls != nullptr && calls->markup) {
      markup_.emplace(tools);
    } else if (calls != nullptr) {
      std::vector<std::string> names;
      for (const Tool& tool : tools) names.push_back(tool.name);
      calls_.emplace(*calls, std::move(names));
    }
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
  int num_calls() const {
    return calls_.has_value() ? calls_->num_calls() : markup_.has_value() ? markup_->num_calls() : 0;
  }
  bool reasons() const { return reasoning_.has_value() && reasoning_->inside(); }

 private:
  void add_rest(std::string_view text, bool last, std::vector<ToolDelta>* out) {
    const auto parse = [&](auto& parser) {
      for (ToolDelta& piece : parser.append(text)) out->push_back(std::move(piece));
      if (!last) return;
      for (ToolDelta& piece : parser.finish()) out->push_back(std::move(piece));
    };
    if (calls_.has_value()) {
      parse(*calls_);
    } else if (markup_.has_value()) {
      parse(*markup_);
    } else if (!text.empty()) {
      out->emplace_back().content = text;
    }
  }

  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> calls_;
  std::optional<MarkupCallParser> markup_;
};

}  // namespace fovea::server
