// The body of POST /generate, SGLang's own API, as its benchmark and router send it: one prompt. Used by Service; the
// fuzzer feeds it bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/openai/api_request.h"

namespace fovea::server {

struct GenerateBody {
  Prompt prompt;
  std::string id;  // the client's own, or empty
  GenerationParams params;
};

std::optional<ApiError> parse_generate_request(std::string_view body, const RequestLimits& limits, GenerateBody* out);

}  // namespace fovea::server
