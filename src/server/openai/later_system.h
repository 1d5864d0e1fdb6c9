// System messages in the middle of a conversation, for chat templates that take one at the head alone. Called by
// Service.
#pragma once

#include <vector>

#include "fovea/engine.h"

namespace fovea::server {

// Puts them in front of the user's next message, marked. Never between a call and its result. False where there are
// none.
bool fold_later_system(std::vector<ChatMessage>* messages);

}  // namespace fovea::server
