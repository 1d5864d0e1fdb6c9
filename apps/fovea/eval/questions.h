// Questions about one needle document, asked of an Engine at once. Used by eval/needle.cc and eval/sweep.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fovea/engine.h"
#include "workload/needle/document.h"
#include "workload/needle/score.h"

namespace fovea::app {

// One question as it went.
struct NeedleAnswer {
  std::int32_t context = 0;
  NeedleQuestion question;
  std::string answer;
  bool right = false;
  double logprob = 0.0;  // mean of the answer's tokens, where asked for
  std::int32_t prompt_tokens = 0, cached_tokens = 0;
  // Tokens at the end of the prompt that came with the question, and the request's last event.
  std::int32_t own_tokens = 0;
  GenerationEvent last;
};

struct AskOptions {
  std::int32_t context = 0;       // copied into the answers
  bool logprobs = false;          // fill NeedleAnswer::logprob
  bool question_selects = false;  // each of the question's tokens selects pages for itself
  std::string sparse, kv_budget;  // of the requests
};

// Asks the first question alone, so that the others find the document in the prefix cache, then up to 64 at once.
// answered() is called for each, on the engine's thread.
Result<std::vector<NeedleAnswer>> ask_about(Engine& engine, const NeedleDocument& document, const AskOptions& options,
                                            const std::function<void()>& answered);

// Counts one answer, by the tenth of the document in which its fact stands.
void count_answer(const NeedleAnswer& answer, NeedleScore& score);

}  // namespace fovea::app
