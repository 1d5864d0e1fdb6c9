// What bodies of several APIs have in common: the outermost object, sampling, the text of messages, the end. Called by
// the parsers of requests (api_request.cc, server/responses, server/anthropic).
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"

namespace fovea::server {

inline constexpr std::int32_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

std::optional<ApiError> parse_object(std::string_view body, Json* out);

// How tokens are sampled, where the answer stops, the cache, page selection.
void read_sampling(FieldReader& fields, const RequestLimits& limits, GenerationParams* params);
// That and what chats and completions share beside it: length (at least so many tokens), choices, streams.
void read_params(FieldReader& fields, const RequestLimits& limits, std::int32_t least_tokens, GenerationParams* params);

// The text of a message: a string, null, or a list of parts that are text. where: of the message. False: it was wrong.
bool read_content(const Json& message, const std::string& where, FieldReader& fields, std::string* out);

// The end of parsing: nothing of the request may be left unread.
std::optional<ApiError> finish(FieldReader& fields, std::vector<std::string>* ignored);

}  // namespace fovea::server
