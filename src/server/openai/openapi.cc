#include "server/openai/openapi.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "fovea/version.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Fields are "name:type", several with a space between; what is no JSON type stands in kTypes. A * behind a name: it
// must be given.
struct Operation {
  const char *method, *path, *summary;
  const char* fields = "";
  const char* example = "";                     // of the body
  const char* answer = "application/json";      // its content type
  bool streams = false, open = false;           // may answer with events; needs no key
  const char* schema = R"({"type":"object"})";  // of the answer
};

struct Type {
  std::string_view name, schema;
};
constexpr Type kTypes[] = {
    {"any", "{}"},
    {"strings", R"({"type":["string","array"],"items":{"type":"string"}})"},
    {"prompt", R"({"type":["string","array"]})"},
    {"input", R"({"type":["string","array"]})"},
    {"ids", R"({"type":"array","items":{"type":"integer","minimum":0}})"},
    {"list", R"({"type":"array","items":{"type":"object"}})"},
    {"messages", R"({"type":"array","minItems":1,"items":{"type":"object","required":["role"]}})"},
    {"choice", R"({"type":["string","object"]})"},
    {"count", R"({"type":"integer","minimum":1})"},
    {"number0", R"({"type":"integer","minimum":0})"},
    {"top", R"({"type":"integer","minimum":0,"maximum":20})"},
    {"share", R"({"type":"number","minimum":0,"maximum":1})"},
    {"top_p", R"({"type":"number","exclusiveMinimum":0,"maximum":1})"},
    {"top_k", R"({"type":"integer","minimum":-1})"},
    {"repetition", R"({"type":"number","minimum":0.01,"maximum":100})"},
    {"penalty", R"({"type":"number","minimum":-2,"maximum":2})"},
    {"temperature", R"({"type":"number","minimum":0,"maximum":100})"},
    {"budget", R"({"type":["integer","string"]})"},
};

#define FOVEA_SAMPLING                                                                                              \
  "temperature:temperature top_p:top_p top_k:top_k min_p:share presence_penalty:penalty frequency_penalty:penalty " \
  "repetition_penalty:repetition seed:integer stop:strings stop_token_ids:ids include_stop_str_in_output:boolean "  \
  "ignore_eos:boolean skip_special_tokens:boolean logit_bias:object cache_salt:string priority:integer "            \
  "sparse:string kv_budget:budget sparse_prompt_tokens:number0 "
#define FOVEA_FORMS                                                                                             \
  "response_format:object structured_outputs:object guided_json:any guided_regex:string guided_choice:strings " \
  "guided_grammar:string json_schema:any regex:string ebnf:string "
#define FOVEA_HINTS "user:any metadata:any store:any service_tier:any "
#define FOVEA_CHAT                                                                                              \
  "messages*:messages tools:list tool_choice:choice parallel_tool_calls:boolean add_generation_prompt:boolean " \
  "continue_final_message:boolean chat_template_kwargs:object reasoning_effort:string "
#define FOVEA_MESSAGES                                                                          \
  "model:string messages*:messages system:input tools:list tool_choice:object thinking:object " \
  "output_config:object stop_sequences:strings stream:boolean metadata:any service_tier:any "

constexpr const char* kSvg = "image/svg+xml";
constexpr const char* kText = "text/plain; version=0.0.4; charset=utf-8";

constexpr Operation kOperations[] = {
    {.method = "get", .path = "/health", .summary = "Whether the engine makes progress", .open = true},
    {.method = "get", .path = "/ready", .summary = "Whether new requests are taken", .open = true},
    {.method = "get",
     .path = "/metrics",
     .summary = "Metrics for Prometheus",
     .answer = kText,
     .open = true,
     .schema = R"({"type":"string"})"},
    {.method = "get", .path = "/version", .summary = "The version", .open = true},
    {.method = "get", .path = "/openapi.json", .summary = "This document", .open = true},
    {.method = "get", .path = "/v1/models", .summary = "The model, under each of its names"},
    {.method = "get", .path = "/v1/models/{model}", .summary = "The model under one name"},
    {.method = "get", .path = "/tokenizer_info", .summary = "First and last token, and the chat template"},
    {.method = "get", .path = "/server_info", .summary = "Model, limits, pages, KV bytes read"},
    {.method = "get", .path = "/get_server_info", .summary = "As /server_info"},
    {.method = "get", .path = "/model_info", .summary = "The model"},
    {.method = "get", .path = "/get_model_info", .summary = "As /model_info"},
    {.method = "get", .path = "/engine.json", .summary = "What the page draws of the engine"},
    {.method = "get",
     .path = "/plan.svg",
     .summary = "Picture of the latest plan of several requests",
     .answer = kSvg,
     .schema = R"({"type":"string"})"},
    {.method = "post",
     .path = "/v1/chat/completions",
     .summary = "Chat",
     .fields = "model:string " FOVEA_CHAT FOVEA_SAMPLING FOVEA_FORMS FOVEA_HINTS
               "max_tokens:count max_completion_tokens:count min_tokens:number0 n:count stream:boolean "
               "stream_options:object logprobs:boolean top_logprobs:top prompt_logprobs:top return_token_ids:boolean",
     .example = R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":2})",
     .streams = true},
    {.method = "post",
     .path = "/v1/completions",
     .summary = "Completion of prompts, and scores of them",
     .fields = "model:string prompt*:prompt " FOVEA_SAMPLING FOVEA_FORMS FOVEA_HINTS
               "max_tokens:number0 min_tokens:number0 n:count best_of:count stream:boolean stream_options:object "
               "logprobs:top prompt_logprobs:top echo:boolean suffix:string add_special_tokens:boolean "
               "return_token_ids:boolean",
     .example = R"({"prompt":"It was","max_tokens":2})",
     .streams = true},
    {.method = "post",
     .path = "/v1/responses",
     .summary = "The Responses API, without a store",
     .fields = "model:string input:input instructions:string tools:list tool_choice:choice "
               "parallel_tool_calls:boolean text:object reasoning:object include:strings stream:boolean "
               "stream_options:object truncation:string max_output_tokens:count max_tool_calls:number0 "
               "top_logprobs:top " FOVEA_SAMPLING FOVEA_HINTS,
     .example = R"({"input":"Hi","max_output_tokens":2})",
     .streams = true},
    {.method = "post",
     .path = "/v1/messages",
     .summary = "Anthropic's Messages API",
     .fields = "max_tokens*:count " FOVEA_MESSAGES FOVEA_SAMPLING,
     .example = R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":2})",
     .streams = true},
    {.method = "post",
     .path = "/v1/messages/count_tokens",
     .summary = "Tokens of such a request",
     .fields = "max_tokens:count " FOVEA_MESSAGES FOVEA_SAMPLING,
     .example = R"({"messages":[{"role":"user","content":"Hi"}]})"},
    {.method = "post",
     .path = "/generate",
     .summary = "Completion of one prompt, as SGLang has it",
     .fields = "text:string input_ids:ids sampling_params:object stream:boolean rid:string",
     .example = R"({"text":"It was","sampling_params":{"max_new_tokens":2}})",
     .streams = true},
    {.method = "post",
     .path = "/tokenize",
     .summary = "Token ids of a prompt or a chat",
     .fields = "model:string prompt:string add_special_tokens:boolean return_token_strs:boolean messages:messages "
               "tools:list tool_choice:choice parallel_tool_calls:boolean add_generation_prompt:boolean "
               "continue_final_message:boolean chat_template_kwargs:object reasoning_effort:string",
     .example = R"({"prompt":"It was"})"},
    {.method = "post",
     .path = "/detokenize",
     .summary = "Text of token ids",
     .fields = "model:string tokens*:ids",
     .example = R"({"tokens":[65,66]})"},
    {.method = "post", .path = "/flush_cache", .summary = "Drops cached prefixes that no request uses"},
};

#undef FOVEA_SAMPLING
#undef FOVEA_FORMS
#undef FOVEA_HINTS
#undef FOVEA_CHAT
#undef FOVEA_MESSAGES

// A null counts as absent, so each field may be null.
OrderedJson field_schema(std::string_view type) {
  OrderedJson schema = {{"type", std::string(type)}};
  for (const Type& known : kTypes) {
    if (known.name == type) schema = OrderedJson::parse(known.schema);
  }
  if (!schema.contains("type")) return schema;
  if (!schema["type"].is_array()) schema["type"] = OrderedJson::array({schema["type"]});
  schema["type"].push_back("null");
  return schema;
}

OrderedJson body_schema(std::string_view fields) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson required = OrderedJson::array();
  while (!fields.empty()) {
    std::string_view field = fields.substr(0, fields.find(' '));
    fields.remove_prefix(std::min(fields.size(), field.size() + 1));
    const std::size_t colon = field.find(':');
    std::string name(field.substr(0, colon));
    if (name.ends_with('*')) {
      name.pop_back();
      required.push_back(name);
    }
    properties[name] = field_schema(field.substr(colon + 1));
  }
  OrderedJson schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

OrderedJson operation_json(const Operation& operation) {
  OrderedJson out = {{"summary", operation.summary}};
  if (std::string_view(operation.path).ends_with("{model}")) {
    out["parameters"] =
        OrderedJson::array({{{"name", "model"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (operation.fields[0] != '\0') {
    out["requestBody"] = {
        {"required", true},
        {"content",
         {{"application/json",
           {{"schema", body_schema(operation.fields)}, {"example", OrderedJson::parse(operation.example)}}}}}};
  }
  OrderedJson content = {{operation.answer, {{"schema", OrderedJson::parse(operation.schema)}}}};
  if (operation.streams) content["text/event-stream"] = OrderedJson::object();
  out["responses"] = {{"200", {{"description", "The answer"}, {"content", std::move(content)}}},
                      {"default", {{"$ref", "#/components/responses/Error"}}}};
  if (!operation.open) out["security"] = OrderedJson::array({OrderedJson::object(), {{"key", OrderedJson::array()}}});
  return out;
}

std::string make() {
  OrderedJson paths = OrderedJson::object();
  for (const Operation& operation : kOperations) paths[operation.path][operation.method] = operation_json(operation);
  const OrderedJson error = {
      {"description", "Why the request was refused; param names the field"},
      {"content", {{"application/json", {{"schema", {{"type", "object"}, {"required", {"error"}}}}}}}}};
  const OrderedJson document = {
      {"openapi", "3.1.0"},
      {"info", {{"title", "Fovea"}, {"version", std::string(kVersion)}}},
      {"paths", std::move(paths)},
      {"components",
       {{"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}, {"responses", {{"Error", error}}}}}};
  return document.dump();
}

}  // namespace

const std::string& openapi_json() {
  static const std::string document = make();
  return document;
}

}  // namespace fovea::server
