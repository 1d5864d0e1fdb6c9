// AnswerWriter: the shape of one answer in an API whose answers are lists of items or blocks. Generation feeds it the
// pieces of the answer as they become certain, for streams and whole answers alike, so both say the same. Implemented
// in server/responses and server/anthropic.
#pragma once

#include <string>
#include <string_view>

#include "fovea/engine.h"
#include "server/http/message.h"
#include "server/openai/api_request.h"
#include "server/openai/chunk_writer.h"

namespace fovea::server {

// How an answer ended.
struct AnswerEnd {
  FinishReason finish = FinishReason::kStop;
  Usage usage;
  std::string stop_text;  // the stop string that ended it; empty: none
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // A whole event or comment that a silent stream may carry at any time; empty: none.
  virtual std::string_view keep_alive() const { return {}; }
  // Each appends whole events of a stream to *out, for whoever streams.
  virtual void begin(std::string* out) = 0;
  // So many more tokens came; what they say follows.
  virtual void tokens(std::int64_t) {}
  virtual void reasoning(std::string_view text, std::string* out) = 0;
  // logprobs: entries of a JSON list without its brackets, empty where none were asked for.
  virtual void text(std::string_view text, std::string_view logprobs, std::string* out) = 0;
  // A call begins; without an id: more arguments of the latest.
  virtual void call(const ToolCall& call, std::string* out) = 0;
  virtual void end(const AnswerEnd& end, std::string* out) = 0;
  // In place of end(), in a stream that began.
  virtual void fail(const ApiError& error, std::string* out) = 0;

  // After end(): the body of an answer that is not streamed.
  virtual std::string whole() const = 0;
  // An answer that never began.
  virtual HttpResponse refusal(const ApiError& error) const = 0;
};

}  // namespace fovea::server
