// One answer from an Engine in this process, streamed to a callback; waits for its end, and shows on stderr how far its
// prompt is read. Used by generate and chat.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "fovea/engine.h"

namespace fovea::app {

struct LocalAnswer {
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::int32_t prompt_read = 0;  // tokens of the prompt that were read when it ended; all, unless cancelled before
  double first_token_s = 0.0;    // from the call
  double total_s = 0.0;
  // Tokens a second after the first; 0 with fewer than two tokens.
  double decode_rate() const {
    return completion_tokens > 1 && total_s > first_token_s ? (completion_tokens - 1) / (total_s - first_token_s) : 0.0;
  }
  // "4096 tokens read, first token after 1.2 s, ...", or what was read and answered before Ctrl-C.
  std::string figures() const;
};

// on_text gets the new text as it comes, on the engine's thread. SIGINT, before the first token or after, ends the
// answer with what there is (kCancelled).
Result<LocalAnswer> generate_locally(Engine& engine, std::vector<std::int32_t> prompt, const SamplingParams& sampling,
                                     const std::function<void(std::string_view)>& on_text);

}  // namespace fovea::app
