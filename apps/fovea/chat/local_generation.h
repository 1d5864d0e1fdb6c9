// One answer from an Engine in this process, streamed to a callback; waits for its end. Used by generate and chat.
#pragma once

#include <functional>
#include <string_view>

#include "fovea/engine.h"

namespace fovea::app {

struct LocalAnswer {
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double first_token_s = 0.0;  // from the call
  double total_s = 0.0;
  // Tokens a second after the first; 0 with fewer than two tokens.
  double decode_rate() const {
    return completion_tokens > 1 && total_s > first_token_s ? (completion_tokens - 1) / (total_s - first_token_s) : 0.0;
  }
};

// on_text gets the new text as it comes, on the engine's thread. SIGINT, once the first token is out or before, ends
// the answer with what there is (kCancelled).
Result<LocalAnswer> generate_locally(Engine& engine, std::vector<std::int32_t> prompt, const SamplingParams& sampling,
                                     const std::function<void(std::string_view)>& on_text);

}  // namespace fovea::app
