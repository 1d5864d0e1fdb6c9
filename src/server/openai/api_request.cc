#include "server/openai/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "server/openai/field_reader.h"
#include "server/openai/other_fields.h"
#include "server/openai/response_format.h"
#include "server/openai/tools.h"

namespace fovea::server {
namespace {

constexpr std::int32_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

std::optional<ApiError> parse_object(std::string_view body, Json* out) {
  Result<Json> parsed = parse_json(body, "request body");
  if (!parsed.ok()) return ApiError{400, parsed.status().message(), "", "invalid_json"};
  if (!parsed->is_object()) {
    return ApiError{400, fmt::format("the request body is {}, expected an object", json_type(*parsed)), "", ""};
  }
  *out = std::move(*parsed);
  return std::nullopt;
}

// Fields that change the answer and that this server does not do: refused rather than ignored.
void refuse_unsupported(FieldReader& fields) {
  if (const Json* modalities = fields.find("modalities");
      modalities != nullptr && *modalities != Json::array({"text"})) {
    fields.refuse("modalities", "only the modality \"text\" is supported by this server", "unsupported_parameter");
  }
}

void read_logit_bias(FieldReader& fields, std::int32_t vocab_size, SamplingParams* sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    fields.fail("logit_bias", "logit_bias must be an object of token ids and numbers from -100 to 100");
    return;
  }
  sampling->logit_bias.clear();
  for (const auto& [key, value] : bias->items()) {
    char* end = nullptr;
    const long id = std::strtol(key.c_str(), &end, 10);
    const bool whole = !key.empty() && *end == '\0' && key[0] != ' ' && key[0] != '+';
    const double number = value.is_number() ? value.get<double>() : 1e9;
    if (!whole || id < 0 || id >= vocab_size || !(number >= -100.0 && number <= 100.0)) {
      fields.fail("logit_bias", fmt::format("logit_bias: expected token ids from 0 to {} and numbers from -100 to 100",
                                            vocab_size - 1));
      return;
    }
    sampling->logit_bias.emplace_back(static_cast<std::int32_t>(id), static_cast<float>(number));
  }
}

void read_stops(FieldReader& fields, std::int32_t vocab_size, SamplingParams* sampling) {
  fields.strings("stop", &sampling->stop);
  std::erase(sampling->stop, "");
  fields.token_ids("stop_token_ids", vocab_size, &sampling->stop_token_ids);
  fields.boolean("include_stop_str_in_output", &sampling->include_stop_text);
}

void read_stream(FieldReader& fields, bool lenient, GenerationParams* params) {
  fields.boolean("stream", &params->stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields.fail("stream_options", "stream_options must be an object");
    return;
  }
  FieldReader inner(*options, lenient);
  inner.boolean("include_usage", &params->include_usage);
  if (inner.failed()) fields.fail("stream_options.include_usage", "include_usage must be true or false");
  refuse_other_fields(inner, "stream_options.");
  if (auto error = inner.take_error()) fields.fail(error->param, error->message, error->code);
  if (!params->stream) {
    if (params->include_usage) fields.fail("stream_options", "stream_options is only allowed when stream is true");
    params->include_usage = false;
  }
}

// A number of tokens, or text: "4096", "T/8".
void read_kv_budget(FieldReader& fields, std::string* out) {
  const Json* value = fields.find("kv_budget");
  if (value == nullptr) return;
  std::int32_t tokens = 0;
  if (value->is_number()) {
    if (fields.integer("kv_budget", 1, kMaxTokens, &tokens)) *out = std::to_string(tokens);
  } else if (value->is_string()) {
    *out = value->get<std::string>();
    if (out->empty()) fields.fail("kv_budget", "kv_budget is empty, expected tokens, as 4096, or a share, as \"T/8\"");
  } else {
    fields.fail("kv_budget",
                fmt::format("kv_budget is {}, expected tokens, as 4096, or a share, as \"T/8\"", json_type(*value)));
  }
}

void read_params(FieldReader& fields, const RequestLimits& limits, GenerationParams* params) {
  SamplingParams& sampling = params->sampling;
  sampling = limits.defaults;
  refuse_unsupported(fields);
  fields.number("temperature", 0.0, 100.0, &sampling.temperature);
  fields.number("top_p", 0.0, 1.0, &sampling.top_p);
  // -1 is another way to say off.
  fields.integer("top_k", std::int32_t{-1}, kMaxTokens, &sampling.top_k);
  sampling.top_k = std::max(sampling.top_k, 0);
  fields.number("min_p", 0.0, 1.0, &sampling.min_p);
  fields.number("presence_penalty", -2.0, 2.0, &sampling.presence_penalty);
  fields.number("frequency_penalty", -2.0, 2.0, &sampling.frequency_penalty);
  fields.number("repetition_penalty", 1e-3, 1e3, &sampling.repetition_penalty);
  std::int64_t seed = 0;
  if (fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                     &seed)) {
    sampling.seed = static_cast<std::uint64_t>(seed);
    sampling.has_seed = true;
  }
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (fields.integer(name, std::int32_t{1}, kMaxTokens, &sampling.max_tokens)) params->max_tokens_field = name;
  }
  fields.integer("min_tokens", std::int32_t{0}, kMaxTokens, &sampling.min_tokens);
  if (params->has_max_tokens() && sampling.min_tokens > sampling.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("min_tokens {} is larger than max_tokens {}", sampling.min_tokens, sampling.max_tokens));
  }
  fields.boolean("ignore_eos", &sampling.ignore_eos);
  fields.boolean("skip_special_tokens", &sampling.skip_special_tokens);
  read_stops(fields, limits.vocab_size, &sampling);
  read_logit_bias(fields, limits.vocab_size, &sampling);
  fields.integer("n", std::int32_t{1}, limits.max_choices, &params->n);
  params->best_of = params->n;
  read_stream(fields, limits.lenient, params);
  fields.boolean("return_token_ids", &params->return_token_ids);
  fields.string("cache_salt", &params->cache_salt);
  fields.integer("priority", std::numeric_limits<std::int32_t>::min(), kMaxTokens, &params->priority);
  if (fields.string("sparse", &params->sparse) && params->sparse.empty()) {
    fields.fail("sparse", "sparse is empty, expected \"off\", \"auto\" or the name of a policy");
  }
  read_kv_budget(fields, &params->kv_budget);
  fields.integer("sparse_prompt_tokens", 0, kMaxTokens, &params->sparse_prompt_tokens);
}

// The text of a message: a string, null, or a list of text parts.
bool read_content(const Json& message, const std::string& where, FieldReader& fields, std::string* out) {
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) return true;
  if (found->is_string()) {
    *out = found->get<std::string>();
    return true;
  }
  if (!found->is_array()) {
    fields.fail(where + ".content",
                fmt::format("{}.content is {}, expected a string or a list of parts", where, json_type(*found)));
    return false;
  }
  for (const Json& part : *found) {
    if (part.is_string()) {
      *out += part.get<std::string>();
      continue;
    }
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : std::string("?");
    const bool text = (type == "text" || type == "input_text") && part.contains("text") && part["text"].is_string();
    if (!text) {
      fields.fail(where + ".content",
                  fmt::format("{}.content holds a part of type {}; this server reads parts of type \"text\"", where,
                              quote(type)),
                  "unsupported_parameter");
      return false;
    }
    *out += part["text"].get<std::string>();
  }
  return true;
}

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

// The end of parsing: nothing of the request may be left unread.
std::optional<ApiError> finish(FieldReader& fields, std::vector<std::string>* ignored) {
  refuse_other_fields(fields);
  *ignored = fields.ignored();
  return fields.take_error();
}

}  // namespace

std::optional<ApiError> parse_chat_request(std::string_view body, const RequestLimits& limits, ChatRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object, limits.lenient);
  fields.string("model", &out->model);
  const Json* messages = fields.find("messages");
  if (messages == nullptr) {
    fields.fail("messages", "messages is missing");
  } else {
    read_messages(*messages, fields, &out->messages);
  }
  read_params(fields, limits, &out->params);
  read_response_format(fields, body, &out->params);
  read_tools(fields, body, &out->tools);
  if (!out->tools.tools.empty() && out->params.grammar.has_value()) {
    fields.fail(out->params.grammar_field,
                fmt::format("{} together with tools is not supported by this server; leave one of them out, or set "
                            "tool_choice to \"none\"",
                            out->params.grammar_field),
                "unsupported_parameter");
  }
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
  read_params(fields, limits, &params);
  read_response_format(fields, body, &params);
  fields.boolean("echo", &out->echo);
  fields.boolean("add_special_tokens", &out->add_special_tokens);
  params.sampling.logprobs = -1;
  fields.integer("logprobs", std::int32_t{0}, kMaxTopLogprobs, &params.sampling.logprobs);
  if (out->echo && params.sampling.logprobs >= 0) {
    fields.fail("echo", "echo together with logprobs is not supported by this server", "unsupported_parameter");
  }
  if (fields.integer("best_of", std::int32_t{1}, limits.max_choices, &params.best_of)) {
    if (params.best_of < params.n) {
      fields.fail("best_of", fmt::format("best_of {} is smaller than n {}", params.best_of, params.n));
    }
    if (params.best_of > params.n && params.stream) {
      fields.fail("best_of", "best_of larger than n cannot be streamed");
    }
  }
  if (static_cast<std::int64_t>(out->prompts.size()) * params.best_of > 4 * limits.max_prompts) {
    fields.fail("n", fmt::format("{} prompts with {} choices each are too many for one request", out->prompts.size(),
                                 params.best_of));
  }
  return finish(fields, &params.ignored);
}

std::optional<ApiError> parse_tokenize_request(std::string_view body, TokenizeRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object);
  fields.boolean("add_special_tokens", &out->add_special_tokens);
  fields.boolean("return_token_strs", &out->return_token_strs);
  if (const Json* messages = fields.find("messages"); messages != nullptr) {
    read_messages(*messages, fields, &out->messages);
  } else if (!fields.string("prompt", &out->prompt)) {
    fields.fail("prompt", "prompt (a string) or messages is missing");
  }
  return fields.take_error();
}

std::optional<ApiError> parse_detokenize_request(std::string_view body, std::int32_t vocab_size,
                                                 std::vector<std::int32_t>* tokens) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object);
  if (!fields.token_ids("tokens", vocab_size, tokens)) fields.fail("tokens", "tokens (a list of ids) is missing");
  return fields.take_error();
}

}  // namespace fovea::server
