#include "server/responses/response_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/quote.h"
#include "server/openai/json_members.h"
#include "server/openai/other_fields.h"
#include "server/openai/request_fields.h"
#include "server/openai/response_format.h"
#include "server/responses/response_input.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What needs a memory of earlier responses, or work after the answer.
void refuse_state(FieldReader& fields) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.find(name) == nullptr) continue;
    fields.fail(name,
                fmt::format("{} needs stored responses, and this server stores none; send the whole conversation as "
                            "input, with store false",
                            name),
                "unsupported_parameter");
  }
  bool background = false;
  if (fields.boolean("background", &background) && background) {
    fields.fail("background", "background is not supported by this server; leave it out", "unsupported_parameter");
  }
  for (const char* name : {"context_management", "moderation"}) {
    const Json* value = fields.find(name);
    if (value == nullptr || value->empty()) continue;
    fields.refuse(name, fmt::format("{} is not supported by this server; leave it out", name), "unsupported_parameter");
  }
}

void one_of(FieldReader& fields, const char* name, const std::string& value,
            std::initializer_list<std::string_view> known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  std::string list;
  for (const std::string_view one : known) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", one);
  fields.fail(name, fmt::format("{} is {}, expected one of {}", name, quote(value), list));
}

// The form of the answer; how many words it has is left to the model.
void read_text(FieldReader& fields, const OrderedJson& request, GenerationParams* params) {
  const Json* text = fields.find("text");
  if (text == nullptr) return;
  if (!text->is_object()) {
    fields.fail("text", "text must be an object");
    return;
  }
  if (const std::string verbosity = text_of(*text, "verbosity"); !verbosity.empty()) {
    one_of(fields, "text.verbosity", verbosity, {"low", "medium", "high"});
  }
  if (const OrderedJson* format = member(request["text"], "format")) {
    read_flat_format(fields, "text.format", *format, params);
  }
  refuse_other_members(fields, "text", *text, {"verbosity", "format"});
}

// Templates of models that reason read the effort; summaries are never made.
void read_reasoning(FieldReader& fields, std::string* template_json) {
  const Json* reasoning = fields.find("reasoning");
  if (reasoning == nullptr) return;
  const Json* effort = member(*reasoning, "effort");
  if (!reasoning->is_object() || (effort != nullptr && !effort->is_string())) {
    fields.fail("reasoning", "reasoning must be an object; its effort a string");
    return;
  }
  refuse_other_members(fields, "reasoning", *reasoning, {"effort", "summary", "generate_summary"});
  if (effort == nullptr) return;
  Json variables = {{"reasoning_effort", *effort}};
  if (*effort == "none") variables["enable_thinking"] = false;
  *template_json = variables.dump();
}

void read_include(FieldReader& fields, ResponseRequest* out, bool* logprobs) {
  std::vector<std::string> include;
  fields.strings("include", &include);
  for (const std::string& name : include) {
    if (name == "reasoning.encrypted_content") {
      out->encrypted_reasoning = true;
    } else if (name == "message.output_text.logprobs") {
      *logprobs = true;
    } else if (name.find("_call") == std::string::npos && !name.starts_with("message.input_image")) {
      fields.fail("include", fmt::format("include holds {}, which this server does not know", quote(name)));
    }  // the others are of tools and images that no answer here has
  }
}

void read_lengths(FieldReader& fields, bool logprobs, GenerationParams* params) {
  if (fields.integer("max_output_tokens", std::int32_t{1}, kMaxTokens, &params->sampling.max_tokens)) {
    params->max_tokens_field = "max_output_tokens";
  }
  std::int32_t calls = 0;  // of hosted tools
  fields.integer("max_tool_calls", std::int32_t{0}, kMaxTokens, &calls);
  std::int32_t top = 0;
  fields.integer("top_logprobs", std::int32_t{0}, kMaxTopLogprobs, &top);
  params->sampling.logprobs = logprobs || top > 0 ? top : -1;
}

// Members of the answer that say what was asked, with defaults where nothing was.
std::string echo_of(const OrderedJson& request, const GenerationParams& params) {
  std::string out;
  const auto append = [&](const char* name, const OrderedJson& fallback) {
    const OrderedJson* given = member(request, name);
    out += fmt::format("\"{}\":{},", name, (given == nullptr ? fallback : *given).dump());
  };
  append("instructions", nullptr);
  append("metadata", OrderedJson::object());
  append("parallel_tool_calls", true);
  out += fmt::format("\"temperature\":{},\"top_p\":{},", params.sampling.temperature, params.sampling.top_p);
  append("tool_choice", "auto");
  append("tools", OrderedJson::array());
  append("text", {{"format", {{"type", "text"}}}});
  append("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  append("max_output_tokens", nullptr);
  append("max_tool_calls", nullptr);
  append("top_logprobs", 0);
  append("prompt_cache_key", nullptr);
  append("safety_identifier", nullptr);
  append("user", nullptr);
  out += R"("truncation":"disabled","previous_response_id":null,"background":false,"store":false,)";
  return out + R"("service_tier":"default",)";
}

}  // namespace

std::optional<ApiError> parse_response_request(std::string_view body, const RequestLimits& limits,
                                               ResponseRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  const OrderedJson ordered = OrderedJson::parse(body);  // it was parsed before, within limits
  FieldReader fields(object, limits.lenient);
  ChatRequest& chat = out->chat;
  GenerationParams& params = chat.params;
  fields.string("model", &chat.model);
  refuse_state(fields);
  read_sampling(fields, limits, &params);
  fields.boolean("stream", &params.stream);
  if (const Json* options = fields.find("stream_options"); options != nullptr) {
    if (!options->is_object()) fields.fail("stream_options", "stream_options must be an object");
    FieldReader inner(*options, limits.lenient);
    refuse_other_fields(inner, "stream_options.");
    if (auto error = inner.take_error()) fields.fail(error->param, error->message, error->code);
  }
  std::string truncation = "disabled";
  fields.string("truncation", &truncation);
  one_of(fields, "truncation", truncation, {"auto", "disabled"});
  if (const Json* metadata = fields.find("metadata"); metadata != nullptr && !metadata->is_object()) {
    fields.fail("metadata", "metadata must be an object");
  }
  bool logprobs = false;
  read_include(fields, out, &logprobs);
  read_lengths(fields, logprobs, &params);
  read_text(fields, ordered, &params);
  read_reasoning(fields, &chat.template_json);

  ResponseToolReader tools(fields, &out->tools);
  if (fields.find("tools") != nullptr) tools.read("tools", ordered["tools"]);
  std::string instructions;
  fields.string("instructions", &instructions);
  const Json* input = fields.find("input");
  const Json nothing = "";
  if (!fields.failed()) {
    read_response_input(input == nullptr ? nothing : *input, input == nullptr ? OrderedJson("") : ordered["input"],
                        instructions, fields, tools, &chat.messages);
  }
  bool parallel = true;
  fields.boolean("parallel_tool_calls", &parallel);
  tools.finish(fields.find("tool_choice"), parallel, &chat.tools);
  if (!fields.failed()) out->echo = echo_of(ordered, params);
  return finish(fields, &params.ignored);
}

}  // namespace fovea::server
