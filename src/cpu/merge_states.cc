#include "cpu/merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"

namespace fovea::cpu {
namespace {

float load(const void* base, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(base)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(base)[index];
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store(void* base, DType dtype, std::int64_t index, float x) {
  if (dtype == DType::kF32) {
    static_cast<float*>(base)[index] = x;
  } else {
    static_cast<std::uint16_t*>(base)[index] = dtype == DType::kBF16 ? float_to_bf16(x) : float_to_f16(x);
  }
}

void merge_one(const MergeStates& m, std::int64_t row, std::int64_t head, float* sums) {
  const float kNothing = -std::numeric_limits<float>::infinity();
  const std::int64_t num_states = m.mask != nullptr && m.mask[row] == 0 ? 1 : m.num_states;
  float max = kNothing;
  for (std::int64_t s = 0; s < num_states; ++s) {
    const AttentionState& state = m.states[s];
    max = std::max(max, state.lse[row * state.lse_row_stride + head * state.lse_head_stride]);
  }
  std::fill_n(sums, m.head_dim, 0.0f);
  float total = 0.0f;
  for (std::int64_t s = 0; s < num_states && max != kNothing; ++s) {
    const AttentionState& state = m.states[s];
    const float weight = std::exp2(state.lse[row * state.lse_row_stride + head * state.lse_head_stride] - max);
    if (weight == 0.0f) continue;  // what it holds does not matter
    total += weight;
    const std::int64_t at = row * state.row_stride + head * state.head_stride;
    for (std::int64_t d = 0; d < m.head_dim; ++d) sums[d] += weight * load(state.v, m.dtype, at + d);
  }
  const std::int64_t to = row * m.out_row_stride + head * m.out_head_stride;
  for (std::int64_t d = 0; d < m.head_dim; ++d) store(m.out, m.dtype, to + d, total > 0.0f ? sums[d] / total : 0.0f);
  if (m.lse_out != nullptr) m.lse_out[row * m.heads + head] = total > 0.0f ? max + std::log2(total) : kNothing;
}

}  // namespace

void merge_states(const MergeStates& m, ThreadPool& threads) {
  threads.parallel_for(m.rows, 8, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sums(static_cast<std::size_t>(m.head_dim));
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < m.heads; ++head) merge_one(m, row, head, sums.data());
    }
  });
}

}  // namespace fovea::cpu
