// POST /v1/responses.
#include <ctime>
#include <memory>
#include <utility>

#include "server/openai/service.h"
#include "server/responses/response_request.h"
#include "server/responses/response_writer.h"

namespace fovea::server {

void Service::responses(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  GenerationSpec spec;
  spec.arrival = request.arrival;
  if (refuse_draining(request, exchange)) return;
  ResponseRequest parsed;
  if (auto error = parse_response_request(request.body, limits(), &parsed)) {
    reply_error(exchange, request, *error);
    return;
  }
  if (unknown_model(parsed.chat.model, request, exchange)) return;
  if (auto error = prepare(&parsed.chat, "input", &spec)) {
    reply_error(exchange, request, *error);
    return;
  }
  spec.kind = ApiKind::kChat;
  spec.id = new_id("resp_");
  spec.answer = std::make_unique<ResponseWriter>(ResponseWriter::Options{
      .id = spec.id,
      .model = spec.model,
      .echo = std::move(parsed.echo),
      .tools = std::move(parsed.tools),
      .encrypted_reasoning = parsed.encrypted_reasoning,
      .created_unix_s = static_cast<std::int64_t>(std::time(nullptr)),
  });
  generate(std::move(spec), "input", request, exchange);
}

}  // namespace fovea::server
