// The drawn cases: the same for the same seed, plannable, within their bounds, and their floors count what a plan
// reads.
#include "workload/sweep_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/plan/planner.h"

namespace fovea {
namespace {

constexpr double kSmall = 4e6;  // bytes of KV, so that plans are quick

TEST(SweepCases, TheSameSeedDrawsTheSameCases) {
  EXPECT_EQ(measured_cases_json(sweep_cases(7, 40, kSmall)), measured_cases_json(sweep_cases(7, 40, kSmall)));
  // The first cases do not depend on how many are drawn.
  EXPECT_EQ(measured_cases_json(sweep_cases(7, 3, kSmall)), measured_cases_json([] {
              auto cases = sweep_cases(7, 40, kSmall);
              cases.resize(3);
              return cases;
            }()));
  EXPECT_NE(measured_cases_json(sweep_cases(7, 3, kSmall)), measured_cases_json(sweep_cases(8, 3, kSmall)));
}

TEST(SweepCases, CasesSpanWhatEnginesRun) {
  std::set<std::int32_t> head_dims, pages, groups, q_tokens;
  std::set<DType> types;
  int windows = 0, caps = 0, sinks = 0, shared = 0, empty = 0;
  for (const MeasuredCase& c : sweep_cases(1, 400, 1.6e9)) {
    SCOPED_TRACE(c.id());
    head_dims.insert(c.head_dim);
    pages.insert(c.page_tokens);
    groups.insert(c.qo_heads / c.kv_heads);
    q_tokens.insert(most_q_tokens(c));
    types.insert(c.kv_dtype);
    windows += c.window > 0;
    caps += c.softcap > 0.0f;
    sinks += c.sinks;
    shared += !c.runs.empty();
    empty += std::find(c.kv_lens.begin(), c.kv_lens.end(), 0) != c.kv_lens.end();
    ASSERT_EQ(c.q_lens.size(), c.kv_lens.size());
    ASSERT_EQ(c.qo_heads % c.kv_heads, 0);
    EXPECT_LE(c.kv_bytes(), 2.5 * 1.6e9);
    for (std::size_t i = 0; i < c.q_lens.size(); ++i) ASSERT_LE(c.q_lens[i], std::max(c.kv_lens[i], 1));
  }
  EXPECT_EQ(head_dims, (std::set<std::int32_t>{64, 80, 96, 112, 128, 192, 256}));
  EXPECT_EQ(*pages.begin(), 1);
  EXPECT_EQ(*pages.rbegin(), 256);
  EXPECT_EQ(*groups.begin(), 1);
  EXPECT_EQ(*groups.rbegin(), 128);
  EXPECT_TRUE(q_tokens.contains(1) && q_tokens.contains(16) && *q_tokens.rbegin() >= 512);
  EXPECT_EQ(types.size(), 5u);
  for (const int count : {windows, caps, sinks, shared, empty}) EXPECT_GE(count, 8);
}

// What a plan that shares everything it may reads: the distinct tokens that somebody sees, but for whole blocks and for
// tiles that read a run again.
TEST(SweepCases, APlanReadsTheBytesThatTheFloorCounts) {
  for (MeasuredCase c : sweep_cases(3, 60, kSmall)) {
    SCOPED_TRACE(c.id());
    const PagedBatch batch = c.batch(1);
    PlannerOptions options;
    options.num_qo_heads = c.qo_heads;
    options.num_kv_heads = c.kv_heads;
    options.head_dim = c.head_dim;
    options.kv_element_bits = dtype_bits(c.kv_dtype);
    options.page_tokens = c.page_tokens;
    options.num_workers = 8;
    options.block_tokens = 16;
    options.limits = batch.limits();
    auto planner = Planner::create(options);
    ASSERT_TRUE(planner.ok()) << planner.status().to_string();
    const Status planned = planner->plan(batch.view());
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    const bool integers = c.kv_dtype == DType::kI8 || c.kv_dtype == DType::kI4;  // whose scales plans do not count
    const double token_bytes = 2.0 * c.head_dim * dtype_bits(c.kv_dtype) / 8 * c.kv_heads;
    const double counted = static_cast<double>(c.unique_kv_tokens()) * token_bytes;
    if (!integers) {
      EXPECT_DOUBLE_EQ(counted, c.kv_bytes());
    }
    EXPECT_GE(static_cast<double>(planner->stats().kv_bytes) * 1.0001, counted);
  }
}

TEST(SweepCases, RunsAreCountedOnceAndOnlyWhereSeen) {
  MeasuredCase c;
  c.q_lens = {1, 1, 1};
  c.kv_lens = {112, 160, 40};
  c.page_tokens = 16;
  c.runs = {{-1, 64}, {0, 32}};
  c.run_of = {1, 1, -1};
  EXPECT_EQ(c.unique_kv_tokens(), 64 + 32 + 16 + 64 + 40);
  c.window = 50;  // of request 0 from token 62 on, of request 1 from 110
  EXPECT_EQ(c.unique_kv_tokens(), 2 + 32 + 16 + 50 + 40);
  const PagedBatch batch = c.batch(1);
  EXPECT_EQ(batch.num_pages, 4 + 2 + 1 + 4 + 3);
  for (std::int32_t page = 0; page < 6; ++page) {
    EXPECT_EQ(batch.page_table[static_cast<std::size_t>(page)],
              batch.page_table[static_cast<std::size_t>(batch.stride + page)]);
  }
  EXPECT_NE(batch.page_table[6], batch.page_table[static_cast<std::size_t>(batch.stride + 6)]);
  c.window = 0;
  c.qo_heads = c.kv_heads = 1;
  c.head_dim = 1;
  EXPECT_DOUBLE_EQ(c.flops(), 4.0 * (112 + 160 + 40));
}

}  // namespace
}  // namespace fovea
