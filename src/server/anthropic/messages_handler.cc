// POST /v1/messages and /v1/messages/count_tokens.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "server/anthropic/message_request.h"
#include "server/anthropic/message_writer.h"
#include "server/openai/service.h"

namespace fovea::server {

void Service::messages(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec spec;
  spec.arrival = request.arrival;
  if (refuse_draining(request, exchange)) return;
  MessageRequest parsed;
  if (auto error = parse_message_request(request.body, limits(), false, &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(parsed.chat.model, request, exchange)) return;
  if (auto error = prepare(&parsed.chat, "messages", &spec)) {
    reply_error(exchange, request, *error);
    return;
  }
  spec.kind = ApiKind::kChat;
  spec.id = new_id("msg_");
  spec.answer = std::make_unique<MessageWriter>(
      MessageWriter::Options{.id = spec.id,
                             .model = spec.model,
                             .request_id = request.id,
                             .prompt_tokens = static_cast<std::int64_t>(spec.requests.front().prompt.size()),
                             .max_tokens = parsed.max_tokens});
  generate(std::move(spec), "messages", request, exchange);
}

void Service::count_tokens(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec unused;
  MessageRequest parsed;
  if (auto error = parse_message_request(request.body, limits(), true, &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(parsed.chat.model, request, exchange)) return;
  if (auto error = use_tools(&parsed.chat, "messages", &unused)) {
    reply_error(exchange, request, *error);
    return;
  }
  const Result<std::vector<std::int32_t>> tokens = render(&parsed.chat);
  if (!tokens.ok()) {
    reply_error(exchange, request, api_error(tokens.status(), "messages"));
    return;
  }
  HttpResponse response;
  response.body = fmt::format("{{\"input_tokens\":{}}}", tokens->size());
  reply(exchange, request, std::move(response));
}

}  // namespace fovea::server
