// NamedCallParser: calls of tools as Mistral's models write them since their 11th tokenizer:
// [TOOL_CALLS]NAME[ARGS]{...}, one behind the other, in some with [CALL_ID]ID before [ARGS]. Arguments go on as the
// model wrote them. Used by AnswerParser, beside ToolCallParser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/tool_calls.h"

namespace fovea::server {

class NamedCallParser {
 public:
  // Calls of other tools are content, and so is whatever only looks like a call.
  explicit NamedCallParser(std::vector<std::string> tools) : tools_(std::move(tools)) {}

  std::vector<ToolDelta> append(std::string_view text);
  // The end of the answer; a call that was cut keeps what was sent of it.
  std::vector<ToolDelta> finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class Where { kText, kName, kArguments };

  // One step over what is held; false: more text is needed.
  bool step();
  bool name_step();
  bool arguments_step();
  void content(std::string_view text);
  void arguments(std::string_view text);

  std::vector<std::string> tools_;
  std::vector<ToolDelta> out_;
  Where where_ = Where::kText;
  std::string held_;
  int num_calls_ = 0;
  // Of the arguments that are being read.
  OpenJson open_;
};

}  // namespace fovea::server
