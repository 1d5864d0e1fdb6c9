// GenerateWriter: an answer as SGLang's /generate has it: {"text","meta_info"}, in streams all of the text so far with
// each piece. One object serves one request. Made by Service, fed by Generation.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/openai/answer_writer.h"

namespace fovea::server {

class GenerateWriter final : public AnswerWriter {
 public:
  GenerateWriter(std::string id, std::int64_t prompt_tokens, std::chrono::steady_clock::time_point arrival)
      : id_(std::move(id)), prompt_tokens_(prompt_tokens), arrival_(arrival) {}

  void begin(std::string*) override {}
  void tokens(std::int64_t count) override { tokens_ += count; }
  void reasoning(std::string_view text, std::string* out) override { this->text(text, "", out); }
  void text(std::string_view text, std::string_view logprobs, std::string* out) override;
  void call(const ToolCall&, std::string*) override {}
  void end(const AnswerEnd& end, std::string* out) override;
  void fail(const ApiError& error, std::string* out) override;
  std::string whole() const override { return whole_; }
  HttpResponse refusal(const ApiError& error) const override;

 private:
  // finish: JSON of the reason; null while it goes on.
  std::string json(std::string_view finish, std::int64_t cached) const;

  const std::string id_;
  const std::int64_t prompt_tokens_;
  const std::chrono::steady_clock::time_point arrival_;
  std::int64_t tokens_ = 0;
  std::string text_, whole_;
};

}  // namespace fovea::server
