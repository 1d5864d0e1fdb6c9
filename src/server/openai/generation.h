// Generation: one API request on its way through the engine. It submits a request a prompt, turns the engine's events
// into chunks or a whole answer, cancels when the client leaves, and feeds the metrics. Made by Service.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine.h"
#include "server/http/exchange.h"
#include "server/metrics/request_log.h"
#include "server/metrics/server_metrics.h"
#include "server/openai/answer_parser.h"
#include "server/openai/answer_writer.h"
#include "server/openai/api_request.h"
#include "server/openai/chunk_writer.h"

namespace fovea::server {

// What a Generation needs of its request.
struct GenerationSpec {
  ApiKind kind = ApiKind::kChat;
  std::unique_ptr<AnswerWriter> answer;  // of an API with items, which takes one prompt and one choice; else null
  std::string id;                        // "chatcmpl-..." or "cmpl-..."
  std::string model;                     // name to show
  GenerationParams params;
  std::vector<GenerateRequest> requests;    // one a prompt, as request_for() makes them
  std::vector<std::string> echo;            // text to put before each prompt's choices, or empty
  bool scored_echo = false;                 // with logprobs of its tokens
  const ToolFormat* tool_format = nullptr;  // how calls of tools stand in the text; null: text is text
  ToolUse tools;
  const ReasoningFormat* reasoning = nullptr;  // how reasoning stands in the text; null: text is text
  bool reasoning_open = false;                 // the prompt ended with its opening tag
  std::int32_t stream_interval = 1;  // tokens of a choice that an event of a stream waits for, after the first
  std::chrono::steady_clock::time_point arrival;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Called once with the status that the request ended with (200 for streams that began), for the metrics and the log.
  using DoneCallback = std::function<void(std::int32_t status, const GenerationReport& report)>;

  Generation(Engine& engine, ServerMetrics& metrics, GenerationSpec spec, std::shared_ptr<Exchange> exchange,
             DoneCallback done);
  // Submits everything. On an error nothing stays submitted and the answer is the error's.
  void start();

 private:
  struct Choice {
    std::int32_t prompt = 0;
    // Of a stream, what is not sent; else all. Where there is a parser, what is certain stands in pieces.
    std::string text;
    std::vector<ToolDelta> pieces;
    std::vector<std::int32_t> tokens;  // where their ids are wanted
    std::int64_t num_unsent = 0;       // tokens that came since something was sent
    std::optional<LogprobsWriter> logprobs;
    bool prompt_added = false;           // its logprobs, to logprobs
    std::optional<AnswerParser> parser;  // where there may be more than content
    double logprob_sum = 0.0;
    std::int64_t logprob_count = 0;
    FinishReason finish = FinishReason::kNone;
    bool started = false;  // something of it was sent
    bool has_token = false;
    std::chrono::steady_clock::time_point last_token;
  };

  void on_event(std::size_t prompt, const GenerationEvent& event);
  void add_logprobs(Choice& choice, const GenerationEvent& event);
  void observe(Choice& choice, const GenerationEvent& event);
  void gather(Choice& choice, const GenerationEvent& event);
  // Whether what was gathered goes out now: the first of it, the last, and every stream_interval tokens.
  bool is_due(const Choice& choice) const;
  // To the stream, or to spec_.answer.
  void send(std::size_t index, Choice& choice);
  void stream_choice(std::size_t index, Choice& choice);
  // One chunk after another; delta: what they have in common.
  void stream_pieces(const Delta& delta, Choice& choice, std::string* bytes);
  void feed_answer(Choice& choice);
  void finish_pieces(std::size_t index, Choice& choice, FinishedChoice* out);
  ToolCall tool_call(std::size_t index, const ToolDelta& piece) const;
  void end_locked();
  void fail_locked(const Status& status);
  void answer_whole_locked();
  void emit_locked(std::string_view bytes);
  void cancel_all();
  void report_done(std::int32_t status, const Usage* usage = nullptr);

  Engine& engine_;
  ServerMetrics& metrics_;
  GenerationSpec spec_;
  std::shared_ptr<Exchange> exchange_;
  DoneCallback done_;
  const std::int64_t created_;
  ChunkWriter writer_;

  std::mutex ids_mutex_;  // guards the next two; taken last
  std::vector<RequestId> ids_;
  bool cancelled_ = false;

  std::mutex mutex_;  // guards the rest
  std::vector<Choice> choices_;
  std::vector<PromptScores> scores_;                // of each prompt, where asked for
  std::vector<std::vector<std::int32_t>> prompts_;  // their tokens, where asked for
  std::size_t left_ = 0;                            // choices that still run
  bool admitted_ = false;                           // every prompt is submitted: the head of a stream may be sent
  bool ended_ = false;
  bool told_prompt_ = false;  // with a chat's first chunk
  std::string chunk_;         // of the event at hand; here to keep its memory
  std::string early_;         // chunks that came before admission
  std::string logprobs_;      // of text that the parser holds back, for spec_.answer
  std::string stop_text_;
  Usage usage_;
  // Written under the lock, read without.
  std::atomic<double> first_token_seconds_{-1.0};
  std::atomic<double> submit_seconds_{-1.0};
  std::atomic<double> queue_seconds_{-1.0};
};

GenerateRequest request_for(const GenerationParams& params, std::vector<std::int32_t> prompt);

// The HTTP status and code for an engine's refusal. param: the field of the request that it is about, or empty.
ApiError api_error(const Status& status, std::string param = "");

}  // namespace fovea::server
