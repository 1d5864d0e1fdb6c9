#include "server/openai/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "server/openai/field_reader.h"
#include "server/openai/request_fields.h"
#include "server/openai/response_format.h"
#include "server/openai/tools.h"

namespace fovea::server {
namespace {

void read_messages(const Json& list, FieldReader& fields, std::vector<ChatMessage>* out) {
  if (!list.is_array() || list.empty()) {
    fields.fail("messages", "messages must be a list of at least one message");
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& message = list[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      fields.fail(where, where + " must be an object with a role");
      return;
    }
    ChatMessage chat;
    chat.role = message["role"].get<std::string>();
    if (chat.role == "developer") chat.role = "system";  // the newer name of the same role
    if (chat.role != "system" && chat.role != "user" && chat.role != "assistant" && chat.role != "tool") {
      fields.fail(where + ".role", fmt::format("{}.role is {}, expected system, developer, user, assistant or tool",
                                               where, quote(chat.role)));
      return;
    }
    if (!read_tool_members(message, where, fields, &chat)) return;
    const bool spoken =
        chat.role == "assistant" || chat.role == "tool";  // these may have calls alone, or nothing to say
    if (!spoken && !message.contains("content")) {
      fields.fail(where + ".content", where + ".content is missing");
      return;
    }
    if (!read_content(message, where, fields, &chat.content)) return;
    out->push_back(std::move(chat));
  }
}

bool read_one_prompt(const Json& value, std::int32_t vocab_size, Prompt* out) {
  if (value.is_string()) {
    out->text = value.get<std::string>();
    return true;
  }
  out->is_text = false;
  return read_token_ids(value, vocab_size, &out->tokens) && !out->tokens.empty();
}

// str, [str], [int] or [[int]].
void read_prompts(FieldReader& fields, const RequestLimits& limits, std::vector<Prompt>* out) {
  const Json* prompt = fields.find("prompt");
  const std::string expected = fmt::format(
      "prompt must be a string, a list of strings, a list of token ids from 0 to {}, or a list of such lists",
      limits.vocab_size - 1);
  if (prompt == nullptr || (prompt->is_array() && prompt->empty())) {
    fields.fail("prompt", prompt == nullptr ? "prompt is missing" : expected);
    return;
  }
  std::vector<const Json*> items;
  if (prompt->is_array() && !(*prompt)[0].is_number()) {
    for (const Json& item : *prompt) items.push_back(&item);
  } else {
    items.push_back(prompt);
  }
  if (items.size() > static_cast<std::size_t>(limits.max_prompts)) {
    fields.fail("prompt",
                fmt::format("{} prompts in one request, at most {} are allowed", items.size(), limits.max_prompts));
    return;
  }
  for (const Json* item : items) {
    Prompt parsed;
    if (!read_one_prompt(*item, limits.vocab_size, &parsed)) {
      fields.fail("prompt", expected);
      return;
    }
    out->push_back(std::move(parsed));
  }
}

// What the template is told: messages, tools, its variables.
void read_chat(FieldReader& fields, std::string_view body, ChatRequest* out) {
  const Json* messages = fields.find("messages");
  if (messages == nullptr) {
    fields.fail("messages", "messages is missing");
  } else {
    read_messages(*messages, fields, &out->messages);
  }
  read_tools(fields, body, &out->tools);
  fields.boolean("add_generation_prompt", &out->add_generation_prompt);
  Json variables = Json::object();
  if (const Json* extra = fields.find("chat_template_kwargs"); extra != nullptr) {
    if (!extra->is_object()) fields.fail("chat_template_kwargs", "chat_template_kwargs must be an object");
    variables = *extra;
  }
  // Templates of models that reason read it under this name.
  std::string effort;
  if (fields.string("reasoning_effort", &effort) && variables.is_object()) {
    variables.emplace("reasoning_effort", std::move(effort));
  }
  if (!variables.empty()) out->template_json = variables.dump();
  bool unfinished = false;
  if (!fields.boolean("continue_final_message", &unfinished) || !unfinished || out->messages.empty()) return;
  bool prompted = false;
  if (fields.boolean("add_generation_prompt", &prompted) && prompted) {
    fields.fail("continue_final_message", "continue_final_message and add_generation_prompt cannot both be true");
  }
  if (out->messages.back().role != "assistant") {
    fields.fail("continue_final_message", "continue_final_message needs a last message of the assistant");
  }
  out->messages.back().unfinished = true;
}

}  // namespace

std::optional<ApiError> parse_chat_request(std::string_view body, const RequestLimits& limits, ChatRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object, limits.lenient);
  fields.string("model", &out->model);
  read_chat(fields, body, out);
  read_params(fields, limits, 1, &out->params);
  read_response_format(fields, body, &out->params);
  bool logprobs = false;
  std::int32_t top = 0;
  fields.boolean("logprobs", &logprobs);
  if (fields.integer("top_logprobs", std::int32_t{0}, kMaxTopLogprobs, &top) && top > 0 && !logprobs) {
    fields.fail("top_logprobs", "top_logprobs is only allowed when logprobs is true");
  }
  out->params.sampling.logprobs = logprobs ? top : -1;
  return finish(fields, &out->params.ignored);
}

std::optional<ApiError> parse_completion_request(std::string_view body, const RequestLimits& limits,
                                                 CompletionRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object, limits.lenient);
  fields.string("model", &out->model);
  read_prompts(fields, limits, &out->prompts);
  GenerationParams& params = out->params;
  read_params(fields, limits, 0, &params);
  read_response_format(fields, body, &params);
  fields.boolean("echo", &out->echo);
  fields.boolean("add_special_tokens", &out->add_special_tokens);
  fields.string("suffix", &out->suffix);
  if (!out->suffix.empty() && out->echo) fields.fail("echo", "echo is not supported beside suffix; leave it out");
  params.sampling.logprobs = -1;
  fields.integer("logprobs", std::int32_t{0}, kMaxTopLogprobs, &params.sampling.logprobs);
  if (fields.integer("best_of", std::int32_t{1}, limits.max_choices, &params.best_of)) {
    if (params.best_of < params.n) {
      fields.fail("best_of", fmt::format("best_of {} is smaller than n {}", params.best_of, params.n));
    }
    if (params.best_of > params.n && params.stream) {
      fields.fail("best_of", "best_of larger than n cannot be streamed");
    }
  }
  params.prompt_only = params.has_max_tokens() && params.sampling.max_tokens == 0;
  if (params.prompt_only && !out->echo && params.prompt_logprobs < 0) {
    fields.fail(params.max_tokens_field,
                params.max_tokens_field + " is 0, which asks for nothing without echo or prompt_logprobs");
  }
  if (params.prompt_only && params.best_of > 1) {
    fields.fail("n", "n must be 1 where max_tokens is 0: all choices would be the prompt");
  }
  if (static_cast<std::int64_t>(out->prompts.size()) * params.best_of > 4 * limits.max_prompts) {
    fields.fail("n",
                fmt::format("{} prompts with {} choices each are too many for one request; at most {} choices of all "
                            "together",
                            out->prompts.size(), params.best_of, 4 * limits.max_prompts));
  }
  return finish(fields, &params.ignored);
}

std::optional<ApiError> parse_tokenize_request(std::string_view body, const RequestLimits& limits,
                                               TokenizeRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object, limits.lenient);
  fields.string("model", &out->chat.model);
  fields.boolean("add_special_tokens", &out->add_special_tokens);
  fields.boolean("return_token_strs", &out->return_token_strs);
  if (fields.find("messages") != nullptr) {
    read_chat(fields, body, &out->chat);
  } else if (!fields.string("prompt", &out->prompt)) {
    fields.fail("prompt", "prompt (a string) or messages is missing");
  }
  for (const char* name : {"tools", "tool_choice", "parallel_tool_calls", "add_generation_prompt",
                           "continue_final_message", "chat_template_kwargs", "reasoning_effort"}) {
    if (fields.find(name) != nullptr && out->chat.messages.empty()) {
      fields.fail(name, fmt::format("{} goes with messages, not with a prompt", name));
    }
  }
  return finish(fields, &out->chat.params.ignored);
}

std::optional<ApiError> parse_detokenize_request(std::string_view body, std::int32_t vocab_size,
                                                 std::vector<std::int32_t>* tokens, std::string* model) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object);
  fields.string("model", model);
  if (!fields.token_ids("tokens", vocab_size, tokens)) fields.fail("tokens", "tokens (a list of ids) is missing");
  std::vector<std::string> ignored;
  return finish(fields, &ignored);
}

}  // namespace fovea::server
