// The bodies of POST /v1/messages and /v1/messages/count_tokens, as a chat. Used by Service; the fuzzer feeds them
// bytes.
#pragma once

#include <optional>
#include <string_view>

#include "server/openai/api_request.h"

namespace fovea::server {

struct MessageRequest {
  ChatRequest chat;
  std::int32_t max_tokens = 0;  // asked for; the context may end before
};

// counting: of count_tokens, which asks for no answer.
std::optional<ApiError> parse_message_request(std::string_view body, const RequestLimits& limits, bool counting,
                                              MessageRequest* out);

}  // namespace fovea::server
