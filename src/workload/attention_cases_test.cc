// The measured cases: every batch can be planned, and their byte counts agree with what a plan says it reads.
#include "workload/attention_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/plan/planner.h"

namespace fovea {
namespace {

std::vector<MeasuredCase> cases_of(std::string_view suites) {
  auto cases = measured_cases(suites);
  EXPECT_TRUE(cases.ok()) << cases.status().to_string();
  return cases.ok() ? *cases : std::vector<MeasuredCase>{};
}

TEST(AttentionCases, EverySuiteHasCasesWithNamesOfTheirOwn) {
  std::set<std::string> ids;
  for (const MeasuredCase& c : cases_of("all")) {
    EXPECT_TRUE(ids.insert(c.id()).second) << c.id();
    EXPECT_EQ(c.q_lens.size(), c.kv_lens.size());
  }
  EXPECT_EQ(ids.size(), 28u + 3 + 5 + 2 + 3 + 3 + 2 + 80);
  EXPECT_EQ(cases_of("quarter").size(), 20u);
  EXPECT_EQ(measured_cases("decode,nothing").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(measured_cases("").status().code(), StatusCode::kInvalidArgument);
}

TEST(AttentionCases, SkewedBatchesHoldAsManyTokensAsTheUniformOne) {
  for (const MeasuredCase& c : cases_of("skew")) EXPECT_EQ(c.unique_kv_tokens(), 64 * 4096) << c.id();
}

TEST(AttentionCases, APlanReadsTheBytesThatTheCaseCounts) {
  for (const MeasuredCase& c : cases_of("quarter,variant,skew")) {
    const PagedBatch batch = c.batch(1);
    PlannerOptions options;
    options.num_qo_heads = c.qo_heads;
    options.num_kv_heads = c.kv_heads;
    options.head_dim = c.head_dim;
    options.page_tokens = c.page_tokens;
    options.num_workers = 132;
    options.limits = batch.limits();
    auto planner = Planner::create(options);
    ASSERT_TRUE(planner.ok()) << c.id() << planner.status().to_string();
    const Status planned = planner->plan(batch.view());
    ASSERT_TRUE(planned.ok()) << c.id() << planned.to_string();
    // Whole blocks of a window; a shared run once for every tile of its rows, but never as often as without sharing.
    std::int64_t unshared = 0;
    for (const std::int32_t tokens : c.kv_lens) unshared += tokens;
    const auto read = static_cast<double>(planner->stats().kv_bytes);
    EXPECT_GE(read, c.kv_bytes() * 0.999) << c.id();
    const double most =
        c.tree.empty() ? 1.1 * c.kv_bytes() : 4.0 * c.kv_heads * c.head_dim * static_cast<double>(unshared);
    EXPECT_LE(read, most) << c.id();
  }
}

TEST(AttentionCases, TheFloorOfACellIsNoLessThanItsBytesTake) {
  for (const MeasuredCase& c : cases_of("prefix")) {
    ASSERT_TRUE(c.floor_us.has_value() && c.unshared_floor_us.has_value());
    const double bytes_us = (c.kv_bytes() + c.qo_bytes()) / 4.8e6;
    EXPECT_GE(*c.floor_us, 0.99 * bytes_us - 0.1) << c.id();
    EXPECT_GE(*c.unshared_floor_us, *c.floor_us * 0.99) << c.id();
  }
}

}  // namespace
}  // namespace fovea
