// Messages of Anthropic's API, whose contents are blocks, as messages for a chat template. Called by
// message_request.cc.
#pragma once

#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"

namespace fovea::server {

// system may be null. A last message of the assistant is one that the answer goes on with. Errors go to fields.
void read_messages_and_blocks(const Json* system, const Json& messages, FieldReader& fields,
                              std::vector<ChatMessage>* out);

}  // namespace fovea::server
