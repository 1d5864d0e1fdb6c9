// PythonicCallParser: calls of tools that a model writes as a list in Python, as Llama 4 and small models of Llama 3.2
// do: [f(a=1, b="x"), g()]. The answer begins with the list; each argument goes on as JSON when it is whole. Used by
// AnswerParser, beside ToolCallParser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/python_literal.h"
#include "server/openai/tool_calls.h"

namespace fovea::server {

class PythonicCallParser {
 public:
  // Calls of other tools are content, and so is whatever only looks like a call.
  explicit PythonicCallParser(std::vector<std::string> tools) : tools_(std::move(tools)) {}

  std::vector<ToolDelta> append(std::string_view text);
  // The end of the answer; a call that was cut keeps what was sent of it.
  std::vector<ToolDelta> finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class Where { kStart, kList, kArguments, kEnd, kText };

  // One step over what is held; false: more text is needed.
  bool step();
  bool start_step();
  bool list_step();
  bool argument_step();
  bool end_step();
  bool no_call();
  void content(std::string_view text);
  void arguments(std::string_view text);

  std::vector<std::string> tools_;
  std::vector<ToolDelta> out_;
  Where where_ = Where::kStart;
  std::string held_;
  std::size_t at_ = 0;  // kList: where its next call begins; before the first call nothing is taken off
  int num_calls_ = 0;
  bool has_arguments_ = false;
  PythonValueEnd value_end_;
};

}  // namespace fovea::server
