// Merges attention states (output, base-2 log-sum-exp) that the caller holds, in fp32. Called by the public API's
// merge_state and merge_states.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "fovea/dtype.h"

namespace fovea::cpu {

// State s of (row, head): values at states[s].v + row * row_stride + head * head_stride, log-sum-exp likewise.
struct AttentionState {
  const void* v;
  const float* lse;
  std::int64_t row_stride, head_stride;          // of v, elements
  std::int64_t lse_row_stride, lse_head_stride;  // elements
};

struct MergeStates {
  const AttentionState* states;  // in the order of merging
  std::int64_t num_states, rows, heads, head_dim;
  DType dtype;  // of values and out: f32, f16 or bf16
  void* out;    // may be the memory of state 0
  std::int64_t out_row_stride, out_head_stride;
  float* lse_out;            // [rows, heads] or null
  const std::uint8_t* mask;  // [rows] or null: rows with 0 take state 0
};

// A row without any weight (all log-sum-exps -inf) becomes 0 with log-sum-exp -inf.
void merge_states(const MergeStates& merge, ThreadPool& threads);

}  // namespace fovea::cpu
