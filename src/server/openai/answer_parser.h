// AnswerParser: cuts the text of one answer into reasoning, content and calls of tools while it comes, each where it
// was asked for; calls of custom tools come with their text in place of arguments. Used by Generation.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "server/openai/custom_input.h"
#include "server/openai/markup_calls.h"
#include "server/openai/named_calls.h"
#include "server/openai/pythonic_calls.h"
#include "server/openai/reasoning.h"
#include "server/openai/tool_calls.h"

namespace fovea::server {

class AnswerParser {
 public:
  // Null formats: nothing of that kind is looked for. tools, open: as ToolCallParser and ReasoningParser take them.
  AnswerParser(const ToolFormat* calls, const std::vector<Tool>& tools, const ReasoningFormat* reasoning, bool open) {
    for (const Tool& tool : tools) {
      if (tool.custom) customs_.push_back(tool.name);
    }
    if (calls != nullptr) make_calls(*calls, tools);
    if (reasoning != nullptr) reasoning_.emplace(*reasoning, open);
  }

  // last: the answer ends with this text.
  std::vector<ToolDelta> append(std::string_view text, bool last) {
    std::vector<ToolDelta> out = pieces(text, last);
    if (!customs_.empty()) unwrap(&out, last);
    return out;
  }
  int num_calls() const {
    return std::visit(
        [](const auto& parser) {
          if constexpr (std::is_same_v<std::decay_t<decltype(parser)>, std::monostate>)
            return 0;
          else
            return parser.num_calls();
        },
        calls_);
  }
  bool reasons() const { return reasoning_.has_value() && reasoning_->inside(); }

 private:
  void make_calls(const ToolFormat& format, const std::vector<Tool>& tools) {
    std::vector<std::string> names;
    for (const Tool& tool : tools) names.push_back(tool.name);
    switch (format.syntax) {
      case CallSyntax::kJson: calls_.emplace<ToolCallParser>(format, std::move(names)); break;
      case CallSyntax::kMarkup: calls_.emplace<MarkupCallParser>(tools); break;
      case CallSyntax::kNamed: calls_.emplace<NamedCallParser>(std::move(names)); break;
      case CallSyntax::kPythonic: calls_.emplace<PythonicCallParser>(std::move(names)); break;
    }
  }

  std::vector<ToolDelta> pieces(std::string_view text, bool last) {
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

  // Arguments of custom tools become the text in them.
  void unwrap(std::vector<ToolDelta>* pieces, bool last) {
    std::vector<ToolDelta> out;
    const auto end = [&] {
      if (custom_ < 0) return;
      if (std::string rest = input_.finish(); !rest.empty()) {
        ToolDelta& more = out.emplace_back();
        more.call = custom_;
        more.custom = true;
        more.arguments = std::move(rest);
      }
      custom_ = -1;
    };
    for (ToolDelta& piece : *pieces) {
      if (piece.call >= 0 && !piece.name.empty()) {
        end();
        if (std::find(customs_.begin(), customs_.end(), piece.name) != customs_.end()) {
          custom_ = piece.call;
          input_ = {};
        }
      }
      if (piece.call >= 0 && piece.call == custom_) {
        piece.custom = true;
        piece.arguments = input_.append(piece.arguments);
        if (piece.arguments.empty() && piece.name.empty()) continue;
      }
      out.push_back(std::move(piece));
    }
    if (last) end();
    *pieces = std::move(out);
  }

  void add_rest(std::string_view text, bool last, std::vector<ToolDelta>* out) {
    const auto parse = [&](auto& parser) {
      if constexpr (std::is_same_v<std::decay_t<decltype(parser)>, std::monostate>) {
        if (!text.empty()) out->emplace_back().content = text;
      } else {
        for (ToolDelta& piece : parser.append(text)) out->push_back(std::move(piece));
        if (!last) return;
        for (ToolDelta& piece : parser.finish()) out->push_back(std::move(piece));
      }
    };
    std::visit(parse, calls_);
  }

  std::optional<ReasoningParser> reasoning_;
  std::vector<std::string> customs_;  // tools that take text
  int custom_ = -1;                   // the call that is read now, where it is of one of them
  CustomInput input_;
  std::variant<std::monostate, ToolCallParser, MarkupCallParser, NamedCallParser, PythonicCallParser> calls_;
};

}  // namespace fovea::server
