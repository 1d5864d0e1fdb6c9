// Writes to paged KV and merges attention states given by the caller. Called by the CPU backend.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "base/thread_pool.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// Scatters rows of k and v [rows, kv_heads, head_dim] (f32, f16 or bf16; last dim contiguous) into the pool, converting
// to its storage type (rounding to nearest even). slots[i] = page * page_tokens + offset of row i; negative: the row is
// skipped. kOutOfRange names the first slot that lies outside the pool; then nothing was written.
Status append_kv(const TensorView& k, const TensorView& v, const std::int32_t* slots, const abi::KvPoolView& pool,
                 ThreadPool& threads);

// (out, lse)[row, head] = the state of a's and b's KV together, as if attended in one call. States are [rows, heads,
// head_dim] fp32 contiguous outputs and [rows, heads] base-2 log-sum-exp. A state with lse -inf has no weight. In place
// (out == a_out or b_out) is allowed.
void merge_state(const float* a_out, const float* a_lse, const float* b_out, const float* b_lse, std::int64_t rows,
                 int heads, int head_dim, float* out, float* lse);

}  // namespace fovea::cpu
