// suffix of a completion: the prompt as models see it that were taught to fill in what stands between two texts. Called
// by Service.
#pragma once

#include <optional>
#include <string>

#include "fovea/engine.h"
#include "server/openai/api_request.h"

namespace fovea::server {

// Puts the suffix into the prompt. Refused where the vocabulary has no tokens for it, and prompts that are tokens.
std::optional<ApiError> infill(const Engine& engine, const std::string& suffix, Prompt* prompt);

}  // namespace fovea::server
