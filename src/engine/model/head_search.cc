#include "engine/model/head_search.h"

#include <algorithm>

#include "base/status.h"

namespace fovea {

Result<HeadSearch> find_streaming_heads(std::int32_t num_layers, std::int32_t num_kv_heads, double bound,
                                        const ScoreHeads& score) {
  HeadSearch search;
  FOVEA_ASSIGN_OR_RETURN(search.dense, score({}));
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    for (std::int32_t head = 0; head < num_kv_heads; ++head) {
      FOVEA_ASSIGN_OR_RETURN(const HeadScore alone, score({{layer, head}}));
      search.alone.push_back({{layer, head}, alone});
    }
  }
  std::stable_sort(search.alone.begin(), search.alone.end(), [](const auto& a, const auto& b) {
    return a.score.right != b.score.right ? a.score.right > b.score.right : a.score.confidence > b.score.confidence;
  });
  std::vector<ModelHead> cheapest;
  for (const HeadSearch::Trial& trial : search.alone) {
    if (search.dense.right - trial.score.right <= bound) cheapest.push_back(trial.head);
  }
  for (;; cheapest.pop_back()) {
    search.streaming = cheapest;
    std::sort(search.streaming.begin(), search.streaming.end());
    search.together = search.dense;
    if (cheapest.empty()) return search;
    FOVEA_ASSIGN_OR_RETURN(search.together, score(search.streaming));
    if (search.dense.right - search.together.right <= bound) return search;
  }
}

}  // namespace fovea
