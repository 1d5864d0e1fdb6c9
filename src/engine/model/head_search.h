// Finding streaming heads by ablation: one head at a time, then together. Called by `fovea profile heads`, which asks
// questions; the search itself knows no engine.
#pragma once

#include <functional>
#include <vector>

#include "engine/model/head_profile.h"
#include "fovea/status.h"

namespace fovea {

// How well questions are answered with some heads streaming.
struct HeadScore {
  double right = 0.0;       // share of right answers
  double confidence = 0.0;  // mean log-probability of the answers' tokens; orders heads that lose equally many
};

struct HeadSearch {
  struct Trial {
    ModelHead head;
    HeadScore score;  // with that head alone streaming
  };
  HeadScore dense;
  std::vector<Trial> alone;  // the cheapest head first
  std::vector<ModelHead> streaming;
  HeadScore together;
};

using ScoreHeads = std::function<Result<HeadScore>(const std::vector<ModelHead>& streaming)>;

// The heads that lose at most `bound` of the answers alone are tried together; while that loses more, the costliest is
// left out. Calls `score` 1 + heads times, and once for each head left out. Its errors end the search.
Result<HeadSearch> find_streaming_heads(std::int32_t num_layers, std::int32_t num_kv_heads, double bound,
                                        const ScoreHeads& score);

}  // namespace fovea
