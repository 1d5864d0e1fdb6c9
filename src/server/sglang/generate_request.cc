#include "server/sglang/generate_request.h"

#include <fmt/format.h>

#include <initializer_list>

#include "server/openai/other_fields.h"
#include "server/openai/request_fields.h"
#include "server/openai/response_format.h"

namespace fovea::server {
namespace {

constexpr std::int32_t kDefaultTokens = 128;  // of this API

// What clients send though it has no effect here.
void pass_over(FieldReader& fields, std::initializer_list<const char*> names) {
  for (const char* name : names) fields.find(name);
}

void read_prompt(FieldReader& fields, std::int32_t vocab_size, Prompt* out) {
  const bool text = fields.find("text") != nullptr;
  if (text == (fields.find("input_ids") != nullptr)) {
    fields.fail("text", "give either text (a string) or input_ids (a list of token ids)");
    return;
  }
  out->is_text = text;
  if (text) {
    fields.string("text", &out->text);
  } else {
    fields.token_ids("input_ids", vocab_size, &out->tokens);
  }
}

std::optional<ApiError> read_sampling_params(const Json& object, const RequestLimits& limits,
                                             GenerationParams* params) {
  FieldReader fields(object, limits.lenient);
  read_sampling(fields, limits, params);
  SamplingParams& sampling = params->sampling;
  sampling.max_tokens = kDefaultTokens;
  params->max_tokens_field = "sampling_params.max_new_tokens";
  fields.integer("max_new_tokens", std::int32_t{1}, kMaxTokens, &sampling.max_tokens);
  fields.integer("min_new_tokens", std::int32_t{0}, sampling.max_tokens, &sampling.min_tokens);
  std::int64_t seed = 0;
  if (fields.integer("sampling_seed", 0, INT64_MAX, &seed)) {
    sampling.seed = static_cast<std::uint64_t>(seed);
    sampling.has_seed = true;
  }
  std::int32_t n = 1;
  fields.integer("n", std::int32_t{1}, std::int32_t{1}, &n);
  read_response_format(fields, object.dump(), params);
  refuse_other_fields(fields, "sampling_params.");
  for (const std::string& name : fields.ignored()) params->ignored.push_back(name);
  return fields.take_error();
}

}  // namespace

std::optional<ApiError> parse_generate_request(std::string_view body, const RequestLimits& limits, GenerateBody* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  FieldReader fields(object, limits.lenient);
  read_prompt(fields, limits.vocab_size, &out->prompt);
  fields.string("rid", &out->id);
  fields.boolean("stream", &out->params.stream);
  pass_over(fields, {"logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "background", "log_metrics"});
  for (const char* name : {"return_logprob", "return_routed_experts"}) {
    bool asked = false;
    if (fields.boolean(name, &asked) && asked) {
      fields.refuse(name, fmt::format("{} is not supported by this server; leave it out", name),
                    "unsupported_parameter");
    }
  }
  const Json none = Json::object();
  const Json* sampling = fields.find("sampling_params");
  if (sampling != nullptr && !sampling->is_object()) {
    fields.fail("sampling_params", "sampling_params must be an object");
  } else if (auto error = read_sampling_params(sampling == nullptr ? none : *sampling, limits, &out->params)) {
    const bool prefixed = error->param.starts_with("sampling_params.");
    fields.fail(prefixed ? error->param : "sampling_params." + error->param, error->message, error->code);
  }
  std::vector<std::string> ignored;
  auto error = finish(fields, &ignored);
  out->params.ignored.insert(out->params.ignored.end(), ignored.begin(), ignored.end());
  return error;
}

}  // namespace fovea::server
