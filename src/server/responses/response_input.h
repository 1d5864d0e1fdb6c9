// The items of a request's `input` in the Responses API, as messages for a chat template. Called by
// response_request.cc.
#pragma once

#include <string>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"
#include "server/responses/response_tools.h"

namespace fovea::server {

// input: a string or a list of items; ordered: the same, with the order of keys, for the tools in it. instructions:
// the first system message, or empty. Errors go to fields.
void read_response_input(const Json& input, const nlohmann::ordered_json& ordered, const std::string& instructions,
                         FieldReader& fields, ResponseToolReader& tools, std::vector<ChatMessage>* out);

}  // namespace fovea::server
