#include "server/openai/service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/quote.h"
#include "fovea/version.h"
#include "server/anthropic/message_writer.h"
#include "server/http/local_host.h"
#include "server/openai/chunk_writer.h"
#include "server/openai/infill.h"
#include "server/openai/later_system.h"
#include "server/openai/openapi.h"
#include "server/openai/tools.h"
#include "server/page/page.h"
#include "server/trace/otlp_exporter.h"

namespace fovea::server {
namespace {

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// "application/json; charset=utf-8" -> "application/json", in lower case.
std::string media_type(std::string_view header) {
  std::string type(header.substr(0, header.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type;
}

}  // namespace

struct Service::Route {
  const char* method;
  std::string_view path;  // one that ends with a slash stands for all below it
  bool open;              // needs no key
  void (Service::*handler)(const HttpRequest&, const std::shared_ptr<Exchange>&);
};

const Service::Route Service::kRoutes[] = {
    {"GET", "/health", true, &Service::health},
    {"GET", "/ready", true, &Service::ready},
    {"GET", "/metrics", true, &Service::metrics_text},
    {"GET", "/version", true, &Service::version},
    {"GET", "/openapi.json", true, &Service::openapi},
    {"GET", "/v1/models", false, &Service::models},
    {"GET", "/v1/models/", false, &Service::model},
    {"GET", "/tokenizer_info", false, &Service::tokenizer_info},
    {"GET", "/server_info", false, &Service::server_info},
    {"GET", "/get_server_info", false, &Service::server_info},
    {"GET", "/model_info", false, &Service::model_info},
    {"GET", "/get_model_info", false, &Service::model_info},
    {"GET", "/engine.json", false, &Service::engine_json},
    {"GET", "/plan.svg", false, &Service::plan_svg},
    {"POST", "/v1/chat/completions", false, &Service::chat},
    {"POST", "/v1/responses", false, &Service::responses},
    {"POST", "/v1/messages", false, &Service::messages},
    {"POST", "/v1/messages/count_tokens", false, &Service::count_tokens},
    {"POST", "/v1/completions", false, &Service::completions},
    {"POST", "/generate", false, &Service::generate_text},
    {"POST", "/tokenize", false, &Service::tokenize},
    {"POST", "/detokenize", false, &Service::detokenize},
    {"POST", "/flush_cache", false, &Service::flush_cache},
};

Service::Service(Engine& engine, ServiceOptions options)
    : engine_(engine),
      options_(std::move(options)),
      metrics_(engine, options_.traces),
      name_(options_.served_names.empty() ? engine.model_name() : options_.served_names.front()),
      tool_format_(options_.tool_parser == "auto" ? tool_format_of(engine.chat_template())
                                                  : tool_format_named(options_.tool_parser)),
      reasoning_format_(options_.reasoning_parser == "auto" ? reasoning_format_of(engine.chat_template())
                                                            : reasoning_format_named(options_.reasoning_parser)),
      live_view_(engine, metrics_, name_),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      id_salt_((std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()),
      keys_(std::make_shared<const std::vector<std::string>>(options_.api_keys)) {}

void Service::reply(const std::shared_ptr<Exchange>& exchange, const HttpRequest& request, HttpResponse response) {
  record(start_of(request), response.status);
  exchange->respond(std::move(response));
}

void Service::reply_error(const std::shared_ptr<Exchange>& exchange, const HttpRequest& request,
                          const ApiError& error) {
  const bool messages = request.path.starts_with("/v1/messages");  // Anthropic's, with errors of its own shape
  reply(exchange, request,
        messages ? message_error(error, request.id)
                 : error_response(error.status, error.message, error.param, error.code));
}

Service::RequestStart Service::start_of(const HttpRequest& request) {
  RequestStart start{{}, request.arrival};
  start.record.method = request.method;
  start.record.path = request.path;
  start.record.id = request.id;
  start.record.traceparent = request.header("traceparent");
  start.record.tracestate = request.header("tracestate");
  return start;
}

void Service::record(const RequestStart& start, std::int32_t status, const GenerationReport& generation) {
  const std::string& path = start.record.path;
  metrics_.count_request(path, status);
  // Probes that found all well say nothing.
  const bool probe = path == "/health" || path == "/ready" || path == "/metrics";
  const bool traced = options_.traces != nullptr && start.record.method == "POST";
  if ((!options_.on_request && !traced) || (probe && status == 200)) return;
  RequestRecord record = start.record;
  record.status = status;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start.arrival).count();
  record.generation = generation;
  if (options_.on_request) options_.on_request(record);
  if (traced) options_.traces->add(record);
}

void Service::set_api_keys(std::vector<std::string> keys) {
  auto next = std::make_shared<const std::vector<std::string>>(std::move(keys));
  const std::lock_guard<std::mutex> lock(keys_mutex_);
  keys_ = std::move(next);
}

bool Service::authorized(const HttpRequest& request) const {
  std::unique_lock<std::mutex> lock(keys_mutex_);
  const auto keys = keys_;
  lock.unlock();
  if (keys->empty()) return true;
  constexpr std::string_view kBearer = "bearer ";  // the scheme in any case, RFC 9110 section 11.1
  const std::string_view header = request.header("authorization");
  const std::string_view scheme = header.substr(0, kBearer.size());
  const bool bearer = std::equal(scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
                                 [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
  const std::string_view given = bearer ? header.substr(kBearer.size()) : std::string_view();
  if (!bearer && header.empty()) {
    const std::string_view plain = request.header("x-api-key");  // as Anthropic's clients send it
    bool known = false;
    for (const std::string& key : *keys) known |= equal_constant_time(plain, key);
    return known;
  }
  bool known = false;
  for (const std::string& key : *keys) known |= equal_constant_time(given, key);  // all, whichever it is
  return known && bearer;
}

std::string Service::foreign(const HttpRequest& request) const {
  const std::string_view host = host_name(request.header("host"));
  const auto& allowed = options_.allowed_hosts;
  if (options_.loopback && !host.empty() && !is_local_name(host) &&
      std::find(allowed.begin(), allowed.end(), host) == allowed.end()) {
    return fmt::format("this server answers to names of this machine, not to {}; --allowed-host adds a name",
                       shorten(host));
  }
  if (options_.cors_origin.empty() && request.method == "POST" && request.header("sec-fetch-site") == "cross-site") {
    return "web pages of other origins may not call this server; --cors-origin lets them";
  }
  return "";
}

void Service::preflight(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.status = 204;
  if (!options_.cors_origin.empty()) {
    const std::string_view headers = request.header("access-control-request-headers");
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                        {"Access-Control-Allow-Headers", headers.empty() ? "*" : std::string(headers)},
                        {"Access-Control-Max-Age", "86400"}};
  }
  reply(exchange, request, std::move(response));
}

void Service::handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  if (std::string why = foreign(request); !why.empty()) {
    reply_error(exchange, request, {403, std::move(why), "", "forbidden"});
    return;
  }
  if (request.method == "OPTIONS") {
    preflight(request, exchange);
    return;
  }
  if (options_.page && request.method == "GET") {
    if (std::optional<HttpResponse> file = page_response(request.path)) {
      reply(exchange, request, std::move(*file));
      return;
    }
  }
  const Route* route = nullptr;
  std::string allowed;
  for (const Route& candidate : kRoutes) {
    const bool below = candidate.path.back() == '/' && request.path.size() > candidate.path.size() &&
                       request.path.starts_with(candidate.path);
    if (request.path != candidate.path && !below) continue;
    allowed = candidate.method;
    if (request.method == candidate.method) route = &candidate;
  }
  if (route == nullptr && !allowed.empty()) {
    HttpResponse response = error_response(
        405, fmt::format("{} is asked for with {}, not {}", shorten(request.path), allowed, shorten(request.method)));
    response.headers.emplace_back("Allow", allowed + ", OPTIONS");
    reply(exchange, request, std::move(response));
    return;
  }
  if (route == nullptr) {
    const bool vectors = request.path == "/v1/embeddings" || request.path == "/v1/rerank";
    reply_error(exchange, request,
                {404,
                 fmt::format("there is no {} here{}", shorten(request.path),
                             vectors ? ": this server's models generate text, none of them makes embeddings" : ""),
                 "", ""});
    return;
  }
  if (!route->open && !authorized(request)) {
    reply_error(exchange, request,
                {401, "the API key is missing or wrong; send Authorization: Bearer KEY", "", "invalid_api_key"});
    return;
  }
  if (request.method == std::string_view("POST") && !request.body.empty()) {
    const std::string type = media_type(request.header("content-type"));
    if (!type.empty() && type != "application/json") {
      reply_error(exchange, request,
                  {415, fmt::format("the content type is {}, expected application/json", shorten(type)), "", ""});
      return;
    }
    const std::string_view coding = request.header("content-encoding");
    if (!coding.empty() && coding != "identity") {
      reply_error(exchange, request,
                  {415, fmt::format("the body is encoded as {}; send it as it is", shorten(coding)), "", ""});
      return;
    }
  }
  (this->*route->handler)(request, exchange);
}

void Service::health(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  if (!stats.healthy) {
    reply_error(exchange, request,
                {503, "the engine has failed; restart the server: " + stats.failure, "", "unhealthy"});
  } else if (stats.seconds_since_step >= options_.stuck_seconds) {
    reply_error(exchange, request,
                {503, fmt::format("the engine is stuck: a forward has run for {:.0f} s", stats.seconds_since_step), "",
                 "unhealthy"});
  } else {
    reply(exchange, request, json_response("{\"status\":\"ok\"}"));
  }
}

void Service::ready(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  if (draining_.load()) {
    reply_error(exchange, request, {503, "the server is shutting down", "", "draining"});
  } else {
    health(request, exchange);
  }
}

void Service::metrics_text(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.text();
  reply(exchange, request, std::move(response));
}

void Service::version(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  reply(exchange, request, json_response(fmt::format("{{\"version\":\"{}\"}}", kVersion)));
}

void Service::openapi(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  reply(exchange, request, json_response(openapi_json()));
}

std::vector<std::string> Service::routes() {
  std::vector<std::string> out;
  for (const Route& route : kRoutes) {
    out.push_back((route.method == std::string_view("GET") ? "get " : "post ") + std::string(route.path));
  }
  return out;
}

std::string Service::model_json(std::string_view name) const {
  std::string body = "{\"id\":";
  append_json_string(&body, name);
  body += fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"fovea\",\"max_model_len\":{}}}", created_,
                      engine_.max_context());
  return body;
}

void Service::models(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  std::string list = model_json(name_);
  for (std::size_t i = 1; i < options_.served_names.size(); ++i) list += "," + model_json(options_.served_names[i]);
  reply(exchange, request, json_response("{\"object\":\"list\",\"data\":[" + list + "]}"));
}

void Service::model(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const std::string name =
      percent_decoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (name.empty()) return models(request, exchange);  // which is no name: /v1/models with a slash behind it
  if (unknown_model(name, request, exchange)) return;
  reply(exchange, request, json_response(model_json(name)));
}

void Service::engine_json(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  live_view_.ask([this, path = request.path, exchange](const std::string& json) {
    HttpResponse response = json_response(json);
    metrics_.count_request(path, response.status);
    exchange->respond(std::move(response));
  });
}

void Service::plan_svg(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "image/svg+xml";
  response.body = engine_.explain_plan_svg();
  if (response.body.empty()) {
    reply_error(exchange, request, {404, "no plan yet: send a request first", "", ""});
  } else {
    reply(exchange, request, std::move(response));
  }
}

bool Service::known_model(std::string_view name) const {
  const auto& names = options_.served_names;
  return name.empty() || name == engine_.model_name() || std::find(names.begin(), names.end(), name) != names.end();
}

bool Service::unknown_model(std::string_view name, const HttpRequest& request,
                            const std::shared_ptr<Exchange>& exchange) {
  if (known_model(name)) return false;
  reply_error(exchange, request,
              {404, fmt::format("the model `{}` does not exist; this server has `{}`", shorten(name), name_), "model",
               "model_not_found"});
  return true;
}

RequestLimits Service::limits() const {
  RequestLimits limits;
  limits.defaults = engine_.default_sampling();
  limits.vocab_size = engine_.vocab_size();
  limits.lenient = options_.lenient;
  return limits;
}

std::string Service::new_id(const char* prefix) {
  return fmt::format("{}{:016x}", prefix, id_salt_ + next_id_.fetch_add(1));
}

std::optional<ApiError> Service::check(const GenerateRequest& request, const GenerationParams& params,
                                       const std::string& prompt_field) const {
  std::string parameter;
  if (const Status status = engine_.check(request, &parameter); !status.ok()) {
    return api_error(status, parameter == "prompt" ? prompt_field : parameter);
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t asked = params.sampling.max_tokens;
  if (!params.has_max_tokens() || prompt + asked <= engine_.max_context()) return std::nullopt;
  return ApiError{400,
                  fmt::format("the prompt has {} tokens and {} asks for {} more, but the context holds {}", prompt,
                              params.max_tokens_field, asked, engine_.max_context()),
                  params.max_tokens_field, "context_length_exceeded"};
}

std::optional<ApiError> Service::use_tools(ChatRequest* request, const std::string& prompt_field,
                                           GenerationSpec* spec) const {
  ToolUse& use = request->tools;
  GenerationParams& params = request->params;
  if (tool_format_ == nullptr) {
    const bool in_messages = std::any_of(
        request->messages.begin(), request->messages.end(),
        [](const ChatMessage& message) { return message.extra_json.find("\"tool_call") != std::string::npos; });
    if (use.tools.empty() && !in_messages) return std::nullopt;
    const std::string field = use.tools.empty() ? prompt_field : "tools";
    if (options_.lenient) {
      params.ignored.push_back(field);
      return std::nullopt;
    }
    return ApiError{400,
                    "the chat template of this model takes no tools, or calls them in a way that this server does not "
                    "read; fovea serve --tool-parser names one that it does",
                    field, "unsupported_parameter"};
  }
  if (use.tools.empty()) return std::nullopt;
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson variables = request->template_json.empty() ? OrderedJson() : OrderedJson::parse(request->template_json);
  variables["tools"] = OrderedJson::parse(use.json);
  request->template_json = variables.dump();
  // What opens a call may be a special token.
  if (!tool_format_->opening.empty()) params.sampling.skip_special_tokens = false;
  if (params.grammar.has_value() && params.grammar->kind != GrammarKind::kJsonSchema) {
    return ApiError{400,
                    fmt::format("{} together with tools is not supported by this server; leave one of them out, or ask "
                                "for JSON by a schema",
                                params.grammar_field),
                    params.grammar_field, "unsupported_parameter"};
  }
  const bool form = params.grammar.has_value() && OrderedJson::accept(params.grammar->text);
  if (const std::string keyword = unforceable(use, *tool_format_); !keyword.empty() && (use.required || form)) {
    return ApiError{400,
                    fmt::format("this model calls tools in Python's words, which cannot be held to {} of a schema; "
                                "leave it out, or let the model choose (tool_choice \"auto\")",
                                quote(keyword)),
                    "tools", "unsupported_parameter"};
  }
  if (use.required) {
    params.grammar = forced_calls(use, *tool_format_);
    params.grammar_field = "tools";
  } else if (form) {
    params.grammar = forced_calls(use, *tool_format_, params.grammar->text);
  } else if (const Result<std::vector<std::int32_t>> opening = engine_.encode(tool_format_->opening, false);
             opening.ok() && engine_.decode(*opening, true) == tool_format_->opening) {  // not a special token
    params.grammar = checked_calls(use, *tool_format_);
    params.grammar_field = "tools";
    params.free_text = true;
  }
  spec->tool_format = tool_format_;
  spec->tools = std::move(use);
  return std::nullopt;
}

void Service::use_reasoning(const std::vector<std::int32_t>& prompt, GenerationSpec* spec) const {
  // Answers that are held to a form are held to it from their first token.
  if (reasoning_format_ == nullptr || (spec->params.grammar.has_value() && !spec->params.free_text)) return;
  constexpr std::size_t kTail = 16;  // tokens that hold a tag and whitespace behind it
  std::string tail =
      engine_.decode({prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), kTail)), prompt.end()}, false);
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
  spec->reasoning = reasoning_format_;
  spec->reasoning_open = tail.ends_with(reasoning_format_->opening);
  spec->params.sampling.skip_special_tokens = false;  // the tags may be special tokens
}

Result<std::vector<std::int32_t>> Service::render(ChatRequest* request) const {
  Result<std::vector<std::int32_t>> tokens =
      engine_.encode_chat(request->messages, request->add_generation_prompt, request->template_json);
  if (tokens.ok() || !fold_later_system(&request->messages)) return tokens;
  return engine_.encode_chat(request->messages, request->add_generation_prompt, request->template_json);
}

std::optional<ApiError> Service::prepare(ChatRequest* request, const std::string& prompt_field, GenerationSpec* spec) {
  if (auto error = use_tools(request, prompt_field, spec)) return error;
  if (auto error = compile_grammar(&request->params)) return error;
  Result<std::vector<std::int32_t>> tokens = render(request);
  if (!tokens.ok()) return api_error(tokens.status(), prompt_field);
  spec->model = request->model.empty() ? name_ : request->model;
  spec->params = std::move(request->params);
  use_reasoning(*tokens, spec);
  spec->requests.push_back(request_for(spec->params, std::move(*tokens)));
  return std::nullopt;
}

bool Service::refuse_draining(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  if (!draining_.load()) return false;
  reply_error(exchange, request, {503, "the server is shutting down", "", "draining"});
  return true;
}

std::optional<ApiError> Service::compile_grammar(GenerationParams* params) {
  if (!params->grammar.has_value()) return std::nullopt;
  Result<std::shared_ptr<const Grammar>> compiled = engine_.compile_grammar(*params->grammar);
  if (!compiled.ok()) {
    ApiError error = api_error(compiled.status(), params->grammar_field);
    if (error.status == 400) error.code.clear();  // a large schema is no long prompt
    return error;
  }
  params->compiled = std::move(*compiled);
  return std::nullopt;
}

void Service::generate(GenerationSpec spec, const std::string& prompt_field, const HttpRequest& request,
                       const std::shared_ptr<Exchange>& exchange) {
  for (const GenerateRequest& one : spec.requests) {
    if (auto error = check(one, spec.params, prompt_field)) {
      reply_error(exchange, request, *error);
      return;
    }
  }
  if (!spec.params.ignored.empty()) {
    log_warning("request {}: ignored {}", request.id, shorten(fmt::format("{}", fmt::join(spec.params.ignored, ", "))));
  }
  spec.stream_interval = options_.stream_interval;
  std::make_shared<Generation>(engine_, metrics_, std::move(spec), exchange,
                               [this, start = start_of(request)](std::int32_t status, const GenerationReport& report) {
                                 record(start, status, report);
                               })
      ->start();
}

void Service::chat(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec spec;
  spec.arrival = request.arrival;
  if (refuse_draining(request, exchange)) return;
  ChatRequest parsed;
  if (auto error = parse_chat_request(request.body, limits(), &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(parsed.model, request, exchange)) return;
  if (auto error = prepare(&parsed, "messages", &spec)) {
    reply_error(exchange, request, *error);
    return;
  }
  spec.kind = ApiKind::kChat;
  spec.id = new_id("chatcmpl-");
  generate(std::move(spec), "messages", request, exchange);
}

void Service::completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec spec;
  spec.arrival = request.arrival;
  if (refuse_draining(request, exchange)) return;
  CompletionRequest parsed;
  if (auto error = parse_completion_request(request.body, limits(), &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(parsed.model, request, exchange)) return;
  if (auto error = compile_grammar(&parsed.params)) {
    reply_error(exchange, request, *error);
    return;
  }
  constexpr std::int32_t kDefaultMaxTokens = 16;  // of this API
  spec.params = std::move(parsed.params);
  if (!spec.params.has_max_tokens()) {
    spec.params.sampling.max_tokens = std::max(kDefaultMaxTokens, spec.params.sampling.min_tokens);
  }
  if (spec.params.prompt_only) spec.params.sampling.max_tokens = 1;  // what the context must have room for
  spec.scored_echo = parsed.echo && spec.params.sampling.logprobs >= 0;
  for (Prompt& prompt : parsed.prompts) {
    if (!parsed.suffix.empty()) {
      if (auto error = infill(engine_, parsed.suffix, &prompt)) {
        reply_error(exchange, request, *error);
        return;
      }
    }
    if (parsed.echo) spec.echo.push_back(prompt.is_text ? prompt.text : engine_.decode(prompt.tokens, false));
    if (prompt.is_text) {
      Result<std::vector<std::int32_t>> tokens = engine_.encode(prompt.text, parsed.add_special_tokens);
      if (!tokens.ok()) {
        reply_error(exchange, request, api_error(tokens.status(), "prompt"));
        return;
      }
      prompt.tokens = std::move(*tokens);
    }
    GenerateRequest& one = spec.requests.emplace_back(request_for(spec.params, std::move(prompt.tokens)));
    if (spec.scored_echo) one.prompt_logprobs = std::max(one.prompt_logprobs, spec.params.sampling.logprobs);
  }
  spec.kind = ApiKind::kCompletion;
  spec.id = new_id("cmpl-");
  spec.model = parsed.model.empty() ? name_ : parsed.model;
  generate(std::move(spec), "prompt", request, exchange);
}

void Service::tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  TokenizeRequest parsed;
  if (auto error = parse_tokenize_request(request.body, limits(), &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  const bool chat = !parsed.chat.messages.empty();
  if (unknown_model(parsed.chat.model, request, exchange)) return;
  GenerationSpec unused;
  if (auto error = chat ? use_tools(&parsed.chat, "messages", &unused) : std::nullopt) {
    reply_error(exchange, request, *error);
    return;
  }
  Result<std::vector<std::int32_t>> tokens =
      chat ? render(&parsed.chat) : engine_.encode(parsed.prompt, parsed.add_special_tokens);
  if (!tokens.ok()) {
    reply_error(exchange, request, api_error(tokens.status(), chat ? "messages" : "prompt"));
    return;
  }
  std::string body =
      fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", tokens->size(), engine_.max_context());
  append_token_ids(&body, *tokens);
  if (parsed.return_token_strs) {
    body += ",\"token_strs\":[";
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      if (i > 0) body.push_back(',');
      append_json_string(&body, engine_.token_bytes((*tokens)[i]));
    }
    body.push_back(']');
  }
  reply(exchange, request, json_response(body + "}"));
}

void Service::tokenizer_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const auto token = [this](std::vector<std::int32_t> ids) {
    return ids.empty() ? std::string("null") : json_string(engine_.decode({ids.front()}, false));
  };
  const Result<std::vector<std::int32_t>> bos = engine_.encode("", true);
  const std::string chat_template = engine_.chat_template();
  reply(exchange, request,
        json_response(fmt::format(R"({{"bos_token":{},"eos_token":{},"pad_token":null,"chat_template":{}}})",
                                  token(bos.ok() ? *bos : std::vector<std::int32_t>()), token(engine_.eos_tokens()),
                                  chat_template.empty() ? "null" : json_string(chat_template))));
}

void Service::detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  std::vector<std::int32_t> tokens;
  std::string model;
  if (auto error = parse_detokenize_request(request.body, engine_.vocab_size(), &tokens, &model)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(model, request, exchange)) return;
  std::string body = "{\"prompt\":";
  append_json_string(&body, engine_.decode(tokens, false));
  reply(exchange, request, json_response(body + "}"));
}

void Service::flush_cache(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  engine_.flush_cache();
  reply(exchange, request, json_response("{\"success\":true}"));
}

}  // namespace fovea::server
