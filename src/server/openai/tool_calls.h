// ToolCallParser: cuts the text of one answer into content and calls of tools while it comes. Arguments go on as the
// model wrote them, byte for byte, once the name is known. Used by Generation, for streams and whole answers alike.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/held_text.h"
#include "server/openai/tool_format.h"

namespace fovea::server {

// What became certain with a piece of text, in order.
struct ToolDelta {
  std::string content;     // when call < 0
  bool reasoning = false;  // the content is reasoning
  int call = -1;           // index of the call
  std::string name;        // not empty: the call begins
  std::string arguments;   // more of its arguments
  bool custom = false;     // the tool takes text, which the arguments are
};

class ToolCallParser {
 public:
  // tools: names that may be called; calls of others are content, and so is whatever only looks like a call.
  // The format must outlive the parser.
  ToolCallParser(const ToolFormat& format, std::vector<std::string> tools)
      : format_(format), tools_(std::move(tools)) {}

  std::vector<ToolDelta> append(std::string_view text);
  // The end of the answer: what was held back is content; behind a call it was whitespace or a further call, cut, and
  // is dropped. A call that was cut keeps what was sent of it.
  std::vector<ToolDelta> finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class Where { kText, kBetween, kCall };                          // kBetween: behind an opening or a call
  enum class Part { kKey, kColon, kValue, kName, kArguments, kOther };  // kValue: before one

  void step(char c);
  void text_step(char c);
  void between_step(char c);
  void call_step(char c);
  void object_step(char c);
  void begin_call();
  void begin_value(char first);
  void end_value();
  void end_call();
  void flush_arguments();
  void give_up();
  void content(std::string_view text);

  const ToolFormat& format_;
  std::vector<std::string> tools_;
  std::vector<ToolDelta> out_;
  Where where_ = Where::kText;
  std::string held_;     // kText: whitespace, what may be the opening; kBetween: what may be the closing
  std::string raw_;      // since the opening or the call before: content again if no call comes of it
  bool spoken_ = false;  // where nothing opens calls: there was text, so that none can come
  bool called_ = false;  // kBetween: a call came since the opening
  int num_calls_ = 0;
  // Of the call that is being read.
  Part part_ = Part::kKey;
  OpenJson open_;
  bool known_ = false;           // its name came and is that of a tool
  bool has_arguments_ = false;   // their key came
  bool sent_arguments_ = false;  // some of them went on
  bool quoted_ = false;          // they are a string that holds JSON
  std::string key_, value_, pending_;
};

}  // namespace fovea::server
