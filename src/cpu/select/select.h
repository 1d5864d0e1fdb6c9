// Selection on the CPU: scores, then lists. Called by the CPU backend between append and attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/page_stats.h"
#include "base/thread_pool.h"
#include "core/select/job.h"
#include "cpu/select/score.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// Memory that selection keeps between calls.
class SelectWorkspace {
 public:
  // Fills every job's lists. q: f32 [rows, num_qo_heads, head_dim]. kInvalidArgument where q, pool, statistics and jobs
  // do not fit each other.
  Status select(const TensorView& q, float sm_scale, const abi::KvPoolView& pool, const abi::PageStatsView& stats,
                std::span<const SelectJob> jobs, ThreadPool& threads);

 private:
  struct Prepared {
    std::int32_t queries = 1;       // of all heads and means: what ScoreArgs calls the group
    std::vector<float> q, q_parts;  // see ScoreArgs
    std::vector<CodeQuery> code_queries;
    std::int64_t scores_begin = 0;
    std::int32_t score_rows = 1;
  };
  void prepare(const TensorView& q, float sm_scale, const abi::PageStatsView& stats, const SelectJob& job,
               std::int32_t group, Prepared& prepared);

  std::vector<Prepared> prepared_;
  std::vector<float> scores_;
  std::vector<ChooseScratch> scratch_;  // one a thread
};

}  // namespace fovea::cpu
