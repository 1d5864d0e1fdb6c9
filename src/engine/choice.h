// A request inside the engine, and its choices. Used by engine_core.cc and engine_text.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/sampler/sampler.h"
#include "engine/sampler/stop_matcher.h"
#include "engine/scheduler/sequence.h"
#include "engine/speculate/ngram_drafter.h"
#include "engine/tokenizer/tokenizer.h"
#include "fovea/engine.h"

namespace fovea {

struct ActiveRequest;

// One choice: the sequence, how it is sampled, and the text on its way out.
struct Choice : Sequence {
  ActiveRequest* request = nullptr;
  std::int32_t index = 0;
  std::int32_t max_tokens = 0;  // what it may generate, the context's end included
  std::optional<SamplingState> sampling;
  std::optional<GrammarMatcher> grammar;  // what may be sampled; none: anything
  std::optional<StreamDecoder> decoder;
  std::optional<StopMatcher> stops;
  NgramDrafter drafter;
  bool awaits_token = false;      // its latest token stands for one that only the device knows
  std::int32_t draft_tokens = 0;  // verified so far, and those accepted
  std::int32_t accepted_tokens = 0;
};

struct ActiveRequest {
  RequestId id = 0;
  std::chrono::steady_clock::time_point arrival;
  std::uint64_t seed = 0;
  GenerateRequest request;
  SparseSetting sparse;
  EventCallback callback;
  std::vector<std::unique_ptr<Choice>> choices;
  std::vector<TokenLogprob> prompt_logprobs;  // those taken so far, until an event takes them along
  std::vector<std::vector<TokenLogprob>> prompt_top_logprobs;
  std::vector<std::int32_t> prompt_ranks;
  std::int32_t prompt_read = 0;  // tokens of the prompt that have their KV
  std::int32_t open = 0;         // choices without a last event
  bool forked = false;           // the other choices are with the scheduler
};

}  // namespace fovea
