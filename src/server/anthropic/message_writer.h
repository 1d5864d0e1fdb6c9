// MessageWriter: an answer as Anthropic's Messages API has it: blocks, one open at a time. One object serves one
// request. Made by Service, fed by Generation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/openai/answer_writer.h"

namespace fovea::server {

// An error in that API's shape; the status stays.
HttpResponse message_error(const ApiError& error, std::string_view request_id);

class MessageWriter final : public AnswerWriter {
 public:
  struct Options {
    std::string id;          // "msg_..."
    std::string model;       // name to show
    std::string request_id;  // for errors
    std::int64_t prompt_tokens = 0;
    std::int64_t max_tokens = 0;  // asked for
  };
  explicit MessageWriter(Options options) : options_(std::move(options)) {}

  std::string_view keep_alive() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }
  void begin(std::string* out) override;
  void reasoning(std::string_view text, std::string* out) override;
  void text(std::string_view text, std::string_view logprobs, std::string* out) override;
  void call(const ToolCall& call, std::string* out) override;
  void end(const AnswerEnd& end, std::string* out) override;
  void fail(const ApiError& error, std::string* out) override;
  std::string whole() const override { return whole_; }
  HttpResponse refusal(const ApiError& error) const override { return message_error(error, options_.request_id); }

 private:
  enum class Kind : std::uint8_t { kNone, kText, kThinking, kTool };

  static void event(std::string* out, std::string_view type, std::string_view data);
  // start: the block as it begins.
  void open_block(Kind kind, std::string_view start, std::string* out);
  void close_block(std::string* out);
  void delta(std::string_view type, std::string_view member, std::string_view text, std::string* out);

  const Options options_;
  Kind kind_ = Kind::kNone;  // of the open block
  int blocks_ = 0;
  bool called_ = false;
  std::string text_;             // of the open block, or its input
  std::string tool_, tool_id_;   // of the open block
  std::string content_, whole_;  // blocks that ended, as JSON; the answer
};

}  // namespace fovea::server
