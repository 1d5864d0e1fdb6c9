// The body of POST /v1/responses, as a chat: stateless, so what needs a store is refused by name. Used by Service; the
// fuzzer feeds it bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/openai/api_request.h"
#include "server/responses/response_tools.h"

namespace fovea::server {

struct ResponseRequest {
  ChatRequest chat;
  ResponseToolNames tools;
  std::string echo;                  // members that the answer repeats, as they stand in it, a comma behind each
  bool encrypted_reasoning = false;  // reasoning items carry what can be sent back
};

std::optional<ApiError> parse_response_request(std::string_view body, const RequestLimits& limits,
                                               ResponseRequest* out);

}  // namespace fovea::server
