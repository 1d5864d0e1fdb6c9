// Writes the JSON of answers and of stream chunks by hand: a chunk a token must not build a document. One object serves
// one request; it knows which API speaks. Used by Generation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine.h"

namespace fovea::server {

enum class ApiKind : std::uint8_t { kCompletion, kChat };

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t draft_tokens = 0;  // verified, and those of them that were accepted
  std::int64_t accepted_tokens = 0;
  std::int64_t reasoning_tokens = 0;
};

// "stop", "length" or null, quotes included; "tool_calls" where an answer that called tools stopped.
std::string_view finish_reason_json(FinishReason reason, bool called = false);
// {"prompt_tokens":..,"completion_tokens":..,"total_tokens":..,"prompt_tokens_details":{"cached_tokens":..},
// "completion_tokens_details":{"reasoning_tokens":..}}; with accepted_prediction_tokens and rejected_prediction_tokens
// where draft tokens were verified.
void append_usage(std::string* out, const Usage& usage);
// [1,2,3]
void append_token_ids(std::string* out, const std::vector<std::int32_t>& tokens);

// Log probabilities of a prompt's tokens.
struct PromptScores {
  std::int32_t first = 0;              // the first token, which has none
  std::vector<TokenLogprob> logprobs;  // of the others
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<std::int32_t> ranks;
};

// As vLLM has them: [null,{"ID":{"logprob":..,"rank":..,"decoded_token":..},..},..].
std::string prompt_logprobs_json(const Engine& engine, const PromptScores& scores, std::int32_t top);

// Collects the logprobs of one choice in the shape of its API, incrementally: a stream takes a piece a chunk, an answer
// the whole.
class LogprobsWriter {
 public:
  LogprobsWriter(const Engine& engine, ApiKind kind) : engine_(engine), kind_(kind) {}
  // Characters that stand before the first token (echo).
  void set_text_offset(std::int64_t characters) { text_offset_ = characters; }
  void add(const GenerationEvent& event);
  // Completions: of an echoed prompt, before all others.
  void add_prompt(const PromptScores& scores, std::int32_t top);
  // Completions: of the token that ended the answer.
  void add_stop(const GenerationEvent& event) {
    add_completion(event.stop_logprob, &event.stop_top_logprobs, kMaxTopLogprobs);
  }
  // Appends what was added since the last call as an object, or null when nothing was.
  void append_json(std::string* out);
  // Chat: the entries alone, as they stand in a list.
  void append_entries(std::string* out);
  bool empty() const { return first_.empty(); }
  void clear();

 private:
  void add_chat(const GenerationEvent& event, std::size_t i);
  void add_completion(const TokenLogprob& chosen, const std::vector<TokenLogprob>* top, std::size_t limit);

  const Engine& engine_;
  const ApiKind kind_;
  std::int64_t text_offset_ = 0;
  // Chat: first_ holds the entries. Completions: tokens, token_logprobs, top_logprobs, text_offset.
  std::string first_, token_logprobs_, top_logprobs_, offsets_;
};

// A call of a tool, or a piece of one.
struct ToolCall {
  std::string id, name;   // both empty: more of its arguments
  std::string arguments;  // JSON, as the model wrote it; text where the tool is custom
  bool custom = false;
};

// One piece of one choice.
struct Delta {
  std::int32_t index = 0;
  bool first = false;                                     // chat: carries the role
  std::string_view text;                                  // new text
  std::string_view reasoning;                             // chat: in place of text
  const ToolCall* call = nullptr;                         // chat: in place of text
  int call_index = 0;                                     // which of the choice's calls that is
  bool called = false;                                    // the choice called tools
  std::string_view logprobs_json = "null";                // object or null
  FinishReason finish = FinishReason::kNone;              // with kNone, finish_reason is null
  const std::vector<std::int32_t>* token_ids = nullptr;   // extension return_token_ids
  const std::vector<std::int32_t>* prompt_ids = nullptr;  // the same, with the first piece
};

class ChunkWriter {
 public:
  // usage_null: every chunk carries "usage":null (stream_options.include_usage).
  ChunkWriter(ApiKind kind, std::string_view id, std::int64_t created_unix_s, std::string_view model, bool usage_null);

  // `data: {...}\n\n`. A chat choice that ends gets a chunk of its own with an empty delta.
  void append_delta(std::string* out, const Delta& delta) const;
  // The extra chunk with empty choices and the usage.
  void append_usage_chunk(std::string* out, const Usage& usage) const;
  // `data: [DONE]\n\n`
  static void append_done(std::string* out);
  // `data: {"error":{...}}\n\n`
  static void append_error(std::string* out, std::string_view message, std::string_view type);

 private:
  void open(std::string* out) const { out->append(prefix_); }

  ApiKind kind_;
  std::string prefix_, suffix_;
};

// One choice of a whole (not streamed) answer.
struct FinishedChoice {
  std::int32_t index = 0;
  std::string text;
  std::string reasoning;        // chat
  std::vector<ToolCall> calls;  // chat
  std::string logprobs_json = "null";
  std::string prompt_logprobs_json;  // empty: none
  FinishReason finish = FinishReason::kStop;
  const std::vector<std::int32_t>* token_ids = nullptr;
  const std::vector<std::int32_t>* prompt_ids = nullptr;
};

std::string whole_answer(ApiKind kind, std::string_view id, std::int64_t created_unix_s, std::string_view model,
                         const std::vector<FinishedChoice>& choices, const Usage& usage);

}  // namespace fovea::server
