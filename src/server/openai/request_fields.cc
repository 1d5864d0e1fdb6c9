#include "server/openai/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/quote.h"
#include "server/openai/other_fields.h"

namespace fovea::server {
namespace {

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

}  // namespace

std::optional<ApiError> parse_object(std::string_view body, Json* out) {
  Result<Json> parsed = parse_json(body, "request body");
  if (!parsed.ok()) return ApiError{400, parsed.status().message(), "", "invalid_json"};
  if (!parsed->is_object()) {
    return ApiError{400, fmt::format("the request body is {}, expected an object", json_type(*parsed)), "", ""};
  }
  *out = std::move(*parsed);
  return std::nullopt;
}

void read_sampling(FieldReader& fields, const RequestLimits& limits, GenerationParams* params) {
  SamplingParams& sampling = params->sampling;
  sampling = limits.defaults;
  fields.number("temperature", 0.0, 100.0, &sampling.temperature);
  if (fields.number("top_p", 0.0, 1.0, &sampling.top_p) && sampling.top_p <= 0.0f) {
    fields.fail("top_p", "top_p is 0, expected more than 0 and at most 1");
  }
  // -1 is another way to say off.
  fields.integer("top_k", std::int32_t{-1}, kMaxTokens, &sampling.top_k);
  sampling.top_k = std::max(sampling.top_k, 0);
  fields.number("min_p", 0.0, 1.0, &sampling.min_p);
  fields.number("presence_penalty", -2.0, 2.0, &sampling.presence_penalty);
  fields.number("frequency_penalty", -2.0, 2.0, &sampling.frequency_penalty);
  fields.number("repetition_penalty", 0.01, 100.0, &sampling.repetition_penalty);
  std::int64_t seed = 0;
  if (fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                     &seed)) {
    sampling.seed = static_cast<std::uint64_t>(seed);
    sampling.has_seed = true;
  }
  fields.boolean("ignore_eos", &sampling.ignore_eos);
  fields.boolean("skip_special_tokens", &sampling.skip_special_tokens);
  read_stops(fields, limits.vocab_size, &sampling);
  read_logit_bias(fields, limits.vocab_size, &sampling);
  fields.string("cache_salt", &params->cache_salt);
  fields.integer("priority", std::numeric_limits<std::int32_t>::min(), kMaxTokens, &params->priority);
  if (fields.string("sparse", &params->sparse) && params->sparse.empty()) {
    fields.fail("sparse", "sparse is empty, expected \"off\", \"auto\" or the name of a policy");
  }
  read_kv_budget(fields, &params->kv_budget);
  fields.integer("sparse_prompt_tokens", 0, kMaxTokens, &params->sparse_prompt_tokens);
}

void read_params(FieldReader& fields, const RequestLimits& limits, std::int32_t least_tokens,
                 GenerationParams* params) {
  SamplingParams& sampling = params->sampling;
  refuse_unsupported(fields);
  read_sampling(fields, limits, params);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (fields.integer(name, least_tokens, kMaxTokens, &sampling.max_tokens)) params->max_tokens_field = name;
  }
  fields.integer("min_tokens", std::int32_t{0}, kMaxTokens, &sampling.min_tokens);
  if (params->has_max_tokens() && sampling.min_tokens > sampling.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("min_tokens {} is larger than max_tokens {}", sampling.min_tokens, sampling.max_tokens));
  }
  fields.integer("n", std::int32_t{1}, limits.max_choices, &params->n);
  params->best_of = params->n;
  read_stream(fields, limits.lenient, params);
  fields.boolean("return_token_ids", &params->return_token_ids);
  if (fields.integer("prompt_logprobs", std::int32_t{0}, kMaxTopLogprobs, &params->prompt_logprobs) && params->stream) {
    fields.fail("prompt_logprobs", "prompt_logprobs is not supported in streams; leave stream out");
  }
}

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
    const char* member = type == "refusal" ? "refusal" : "text";
    const bool known = type == "text" || type == "input_text" || type == "output_text" || type == "refusal";
    if (!known) {
      fields.fail(where + ".content",
                  fmt::format("{}.content holds a part of type {}; this server reads parts of type \"text\"", where,
                              quote(type)),
                  "unsupported_parameter");
      return false;
    }
    if (!part.contains(member) || !part[member].is_string()) {
      fields.fail(where + ".content", fmt::format("{}.content holds a part of type {} whose \"{}\" is no string", where,
                                                  quote(type), member));
      return false;
    }
    *out += part[member].get<std::string>();
  }
  return true;
}

// The end of parsing: nothing of the request may be left unread.
std::optional<ApiError> finish(FieldReader& fields, std::vector<std::string>* ignored) {
  refuse_other_fields(fields);
  *ignored = fields.ignored();
  return fields.take_error();
}

}  // namespace fovea::server
