// POST /generate, GET /get_server_info and /get_model_info, as SGLang's benchmark and router ask for them.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "fovea/version.h"
#include "server/openai/service.h"
#include "server/sglang/generate_request.h"
#include "server/sglang/generate_writer.h"

namespace fovea::server {

void Service::generate_text(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec spec;
  spec.arrival = request.arrival;
  if (refuse_draining(request, exchange)) return;
  GenerateBody parsed;
  if (auto error = parse_generate_request(request.body, limits(), &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (auto error = compile_grammar(&parsed.params)) {
    reply_error(exchange, request, *error);
    return;
  }
  const std::string field = parsed.prompt.is_text ? "text" : "input_ids";
  if (parsed.prompt.is_text) {
    Result<std::vector<std::int32_t>> tokens = engine_.encode(parsed.prompt.text, true);
    if (!tokens.ok()) {
      reply_error(exchange, request, api_error(tokens.status(), field));
      return;
    }
    parsed.prompt.tokens = std::move(*tokens);
  }
  spec.kind = ApiKind::kCompletion;
  spec.id = parsed.id.empty() ? new_id("gen-") : parsed.id;
  spec.model = name_;
  spec.params = std::move(parsed.params);
  spec.requests.push_back(request_for(spec.params, std::move(parsed.prompt.tokens)));
  spec.answer = std::make_unique<GenerateWriter>(
      spec.id, static_cast<std::int64_t>(spec.requests.front().prompt.size()), request.arrival);
  generate(std::move(spec), field, request, exchange);
}

void Service::model_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  const std::string name = json_string(name_);
  response.body = fmt::format(
      "{{\"model_path\":{},\"tokenizer_path\":{},\"served_model_name\":{},\"is_generation\":true,\"max_model_len\":{},"
      "\"vocab_size\":{}}}",
      json_string(engine_.model_name()), json_string(engine_.model_name()), name, engine_.max_context(),
      engine_.vocab_size());
  reply(exchange, request, std::move(response));
}

void Service::server_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  HttpResponse response;
  response.body = fmt::format(
      "{{\"model\":{},\"model_path\":{},\"served_model_name\":{},\"version\":\"{}\",\"max_model_len\":{},"
      "\"context_length\":{},\"vocab_size\":{},\"tp_size\":1,\"dp_size\":1,\"running\":{},\"queued\":{},\"prompt_"
      "tokens_pending\":{},\"kv_pages\":{},\"kv_pages_free\":{},"
      "\"kv_pages_cached\":{},\"kv_page_bytes\":{},\"kv_bytes_read\":{},\"kv_bytes_unshared\":{},"
      "\"draft_tokens\":{},\"accepted_tokens\":{},\"internal_states\":[]}}",
      json_string(name_), json_string(engine_.model_name()), json_string(name_), kVersion, engine_.max_context(),
      engine_.max_context(), engine_.vocab_size(), stats.running, stats.queued, stats.prompt_tokens_pending,
      stats.pages_total, stats.pages_free, stats.pages_cached, stats.page_bytes, stats.kv_bytes_read,
      stats.kv_bytes_unshared, stats.draft_tokens, stats.accepted_tokens);
  reply(exchange, request, std::move(response));
}

}  // namespace fovea::server
