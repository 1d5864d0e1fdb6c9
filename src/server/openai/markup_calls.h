// MarkupCallParser: calls of tools that a model writes in tags, a parameter each, as Qwen3-Coder and later Qwen models
// do: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>. Values are text; the tool's
// schema says what they become. Used by AnswerParser, beside ToolCallParser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/tool_calls.h"

namespace fovea::server {

class MarkupCallParser {
 public:
  // Calls of other tools are content, and so is whatever only looks like a call.
  explicit MarkupCallParser(std::vector<Tool> tools) : tools_(std::move(tools)) {}

  std::vector<ToolDelta> append(std::string_view text);
  // The end of the answer; a call that was cut keeps what was sent of it.
  std::vector<ToolDelta> finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class Where { kText, kCall, kParameters, kClosing };

  // One step over what is held; false: more text is needed.
  bool step();
  bool text_step();
  bool call_step();
  bool parameter_step();
  void content(std::string_view text);
  ToolDelta& arguments(std::string_view text);
  std::string value_json(const std::string& key, std::string value) const;

  std::vector<Tool> tools_;
  std::vector<ToolDelta> out_;
  Where where_ = Where::kText;
  std::string held_;
  nlohmann::json properties_;  // of the tool that is called
  bool has_parameters_ = false;
  int num_calls_ = 0;
};

}  // namespace fovea::server
