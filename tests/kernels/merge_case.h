// Random cases of the merge kernels and what must come out, by the definition in double: shapes, strides, empty states
// with NaN values, in place, masks. Used by the tests that run the kernels on the host and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "abi/merge_args.h"
#include "tests/kernels/values.h"

namespace fovea::kernel_test {

using abi::MergeArgs;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// v [rows, states, heads, dim] and s [rows, states, heads], with gaps of v. One in four states saw nothing.
struct States {
  KvDType type;
  int rows, states, heads, dim;
  long long head_stride, state_stride, row_stride;
  Memory<std::uint8_t> v;
  Memory<float> s;

  States(Random& random, KvDType type, int rows, int states, int heads, int dim, int gap)
      : type(type), rows(rows), states(states), heads(heads), dim(dim) {
    head_stride = dim + gap * between(random, 0, 2);
    state_stride = head_stride * heads + gap * between(random, 0, 2);
    row_stride = state_stride * std::max(states, 1);
    v.resize(static_cast<std::size_t>(row_stride * rows + 8) * type_bytes(type));
    s.resize(static_cast<std::size_t>(rows * states * heads));
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows * states * heads; ++i) {
      const bool empty = random() % 4 == 0;
      s[i] = empty ? -kInf : 20.0f * normal(random);
      for (int d = 0; d < dim; ++d) set_value(type, v.data(), start(i) + d, empty ? kNaN : normal(random));
    }
  }
  long long start(int i) const {
    return i / heads / states * row_stride + i / heads % states * state_stride + i % heads * head_stride;
  }
  abi::StateView view() const {
    return {v.data(), s.data(), row_stride, head_stride, static_cast<long long>(states) * heads, 1};
  }
};

// The definition: weights 2^s over their sum. Empty parts weigh nothing, all empty gives 0 and -inf.
inline void expect_merged(KvDType out_type, const std::vector<std::pair<const States*, int>>& parts, int row, int head,
                          const Memory<std::uint8_t>& v_out, long long out_start, float lse_out) {
  double max = -kInf, sum = 0.0;
  const auto index = [&](const States& in, int state) { return (row * in.states + state) * in.heads + head; };
  for (const auto& [in, state] : parts) max = std::max<double>(max, in->s[index(*in, state)]);
  const int dim = parts.empty() ? 0 : parts[0].first->dim;
  std::vector<double> want(static_cast<std::size_t>(dim));
  for (const auto& [in, state] : parts) {
    const float s = in->s[index(*in, state)];
    if (s == -kInf) continue;
    const double weight = std::exp2(s - max);
    sum += weight;
    for (int d = 0; d < dim; ++d) want[d] += weight * value(in->type, in->v.data(), in->start(index(*in, state)) + d);
  }
  if (sum == 0.0) {
    ASSERT_EQ(lse_out, -kInf);
  } else {
    ASSERT_NEAR(lse_out, max + std::log2(sum), 1e-5);
  }
  const double step = out_type == kF32 ? 1e-6 : out_type == kF16 ? 0x1p-11 : 0x1p-8;
  for (int d = 0; d < dim; ++d) {
    const double expected = sum == 0.0 ? 0.0 : want[d] / sum;
    ASSERT_NEAR(value(out_type, v_out.data(), out_start + d), expected, step * std::fabs(expected) + 4e-6) << d;
  }
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kOut, std::uint32_t kVec, typename Run>
void check_merge_two(std::uint64_t seed, Run&& run) {
  Random random(seed);
  const int rows = between(random, 0, 9), heads = between(random, 1, 9);
  States a(random, kIn, rows, 1, heads, kHeadDim, kVec);
  const States b(random, kIn, rows, 1, heads, kHeadDim, kVec), a_before = a;
  const bool in_place = kIn == kOut && random() % 2 == 0;
  const long long out_head = in_place ? a.head_stride : kHeadDim + kVec,
                  out_row = in_place ? a.row_stride : out_head * heads;
  Memory<std::uint8_t> v_out(static_cast<std::size_t>(out_row * rows + 8) * type_bytes(kOut), 0x55);
  Memory<float> s_out(static_cast<std::size_t>(rows * heads), 3.0f);
  Memory<std::uint8_t> mask(rows);
  for (std::uint8_t& bit : mask) bit = static_cast<std::uint8_t>(random() % 3);
  MergeArgs args{};
  args.a = a.view();
  args.b = b.view();
  args.v_out = in_place ? a.v.data() : v_out.data();
  const bool sums_in_place = random() % 2 == 0;
  args.s_out = sums_in_place ? a.s.data() : s_out.data();
  args.v_out_row_stride = out_row, args.v_out_head_stride = out_head;
  args.s_out_row_stride = heads, args.s_out_head_stride = 1;
  args.mask = random() % 2 == 0 ? mask.data() : nullptr;
  args.rows = static_cast<std::uint32_t>(rows), args.heads = static_cast<std::uint32_t>(heads);
  ASSERT_GE(merge_vec(args, kHeadDim, type_bytes(kIn), type_bytes(kOut)), kVec);
  run(args);
  const Memory<std::uint8_t>& v = in_place ? a.v : v_out;
  const Memory<float>& s = sums_in_place ? a.s : s_out;
  for (int i = 0; i < rows * heads; ++i) {
    const int row = i / heads, head = i % heads;
    const long long start = row * out_row + head * out_head;
    if (args.mask != nullptr && mask[row] == 0) {
      ASSERT_EQ(s[i], a_before.s[i]);
      for (std::uint32_t d = 0; d < kHeadDim; ++d) {
        const float kept = value(kIn, a_before.v.data(), a_before.start(i) + d), now = value(kOut, v.data(), start + d);
        if (std::isnan(kept)) {
          ASSERT_TRUE(in_place && sums_in_place ? std::isnan(now) : now == 0.0f);  // an empty state: copied as 0
        } else {
          ASSERT_NEAR(now, kept, 0x1p-8 * std::fabs(kept) + 0x1p-25);
        }
      }
    } else {
      expect_merged(kOut, {{&a_before, 0}, {&b, 0}}, row, head, v, start, s[i]);
    }
  }
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kOut, std::uint32_t kVec, typename Run>
void check_merge_many(std::uint64_t seed, Run&& run) {
  Random random(seed);
  const int rows = between(random, 0, 6), heads = between(random, 1, 9), states = between(random, 0, 11);
  const States in(random, kIn, rows, states, heads, kHeadDim, kVec);
  Memory<std::uint8_t> v_out(static_cast<std::size_t>(rows * heads) * kHeadDim * type_bytes(kOut), 0x55);
  Memory<float> s_out(static_cast<std::size_t>(rows * heads), 3.0f);
  MergeArgs args{};
  args.a = in.view();
  args.v_out = v_out.data();
  args.s_out = random() % 4 == 0 ? nullptr : s_out.data();
  args.v_out_row_stride = heads * kHeadDim, args.v_out_head_stride = kHeadDim;
  args.s_out_row_stride = heads, args.s_out_head_stride = 1;
  args.v_state_stride = in.state_stride, args.s_state_stride = heads;
  args.rows = static_cast<std::uint32_t>(rows), args.heads = static_cast<std::uint32_t>(heads);
  args.num_states = static_cast<std::uint32_t>(states);
  ASSERT_GE(merge_vec(args, kHeadDim, type_bytes(kIn), type_bytes(kOut)), kVec);
  run(args);
  std::vector<std::pair<const States*, int>> parts;
  for (int state = 0; state < states; ++state) parts.emplace_back(&in, state);
  for (int i = 0; i < rows * heads; ++i) {
    const long long start = static_cast<long long>(i) * kHeadDim;
    if (states == 0) {
      for (std::uint32_t d = 0; d < kHeadDim; ++d) ASSERT_EQ(value(kOut, v_out.data(), start + d), 0.0f);
    }
    if (args.s_out == nullptr) {
      ASSERT_EQ(s_out[i], 3.0f);
    } else {
      expect_merged(kOut, parts, i / heads, i % heads, v_out, start, s_out[i]);
    }
  }
}

}  // namespace fovea::kernel_test
