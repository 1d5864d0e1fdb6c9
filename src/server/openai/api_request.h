// The bodies of /v1/completions and /v1/chat/completions, parsed and checked. Whatever this server cannot do or does
// not know is refused by name; fields without effect on the answer are accepted. Used by Service; the fuzzer feeds it
// bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine.h"

namespace fovea::server {

// Why a request is refused, as OpenAI's error object has it.
struct ApiError {
  std::int32_t status = 400;
  std::string message;
  std::string param;  // the field; empty: null
  std::string code;   // "context_length_exceeded", ...; empty: null
};

// What parsing needs to know of the engine.
struct RequestLimits {
  SamplingParams defaults;  // of the model
  std::int32_t vocab_size = 0;
  bool lenient = false;            // what this server does not do is ignored instead of refused
  std::int32_t max_choices = 64;   // n and best_of
  std::int32_t max_prompts = 256;  // in one completions request; prompts x choices at most four times that
};

struct GenerationParams {
  SamplingParams sampling;
  std::string max_tokens_field;  // that gave sampling.max_tokens; empty: none
  bool has_max_tokens() const { return !max_tokens_field.empty(); }
  std::int32_t n = 1;
  std::int32_t best_of = 1;  // >= n; completions only
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  std::int32_t prompt_logprobs = -1;  // top alternatives of each token of the prompt to report; -1: none
  bool prompt_only = false;           // completions: max_tokens is 0
  std::string cache_salt;
  std::int32_t priority = 0;
  // Page selection, as GenerateRequest has it.
  std::string sparse, kv_budget;
  std::int32_t sparse_prompt_tokens = 0;
  std::optional<GrammarSpec> grammar;  // what the answer must look like, and the field that says so
  std::string grammar_field;
  bool free_text = false;                   // the grammar is of calls alone, around them is any text
  std::shared_ptr<const Grammar> compiled;  // by Service
  std::vector<std::string> ignored;         // fields that a lenient server passed over
};

struct Tool {
  std::string name;
  std::string parameters;  // JSON schema
  bool custom = false;     // takes text: to the model a function of one string, `input`
  bool strict = false;     // calls hold to the schema, whoever chose to call
};

struct ToolUse {
  std::vector<Tool> tools;  // those that may be called; empty: none
  std::string json;         // the field tools, as the template sees it
  bool required = false;    // the answer must call one
  bool parallel = true;     // it may call several
};

struct ChatRequest {
  std::string model;  // empty: not given
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string template_json;  // chat_template_kwargs, or ""
  ToolUse tools;
  GenerationParams params;
};

struct Prompt {
  bool is_text = true;
  std::string text;
  std::vector<std::int32_t> tokens;  // when !is_text
};

struct CompletionRequest {
  std::string model;
  std::vector<Prompt> prompts;     // at least one
  std::string suffix;              // what the answer stands before; empty: nothing
  bool echo = false;               // with logprobs, also those of the prompt
  bool add_special_tokens = true;  // to prompts that are text
  GenerationParams params;
};

struct TokenizeRequest {
  std::string prompt;
  ChatRequest chat;  // used when it has messages
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

// Each fills *out or returns why not.
std::optional<ApiError> parse_chat_request(std::string_view body, const RequestLimits& limits, ChatRequest* out);
std::optional<ApiError> parse_completion_request(std::string_view body, const RequestLimits& limits,
                                                 CompletionRequest* out);
std::optional<ApiError> parse_tokenize_request(std::string_view body, const RequestLimits& limits,
                                               TokenizeRequest* out);
std::optional<ApiError> parse_detokenize_request(std::string_view body, std::int32_t vocab_size,
                                                 std::vector<std::int32_t>* tokens, std::string* model);

}  // namespace fovea::server
