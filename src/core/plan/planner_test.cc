// The planner on small batches whose plans are known by hand.
#include "core/plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/plan/timeline.h"

namespace fovea {
namespace {

struct Batch {
  std::vector<std::int32_t> q_lens, kv_lens, table;
  std::int32_t stride = 0;

  Batch(std::vector<std::int32_t> q, std::vector<std::int32_t> kv, std::int32_t page)
      : q_lens(std::move(q)), kv_lens(std::move(kv)) {
    for (const std::int32_t n : kv_lens) stride = std::max(stride, (n + 64) / page + 1);
    table.resize(q_lens.size() * static_cast<std::size_t>(stride));
    std::iota(table.begin(), table.end(), 0);
  }
  AttentionBatch view() const {
    AttentionBatch batch;
    batch.num_requests = static_cast<std::int32_t>(q_lens.size());
    batch.q_lens = q_lens.data();
    batch.kv_lens = kv_lens.data();
    batch.page_table = table.data();
    batch.page_table_stride = stride;
    return batch;
  }
};

TEST(PlannerTest, OneWorkerWritesEverythingDirectly) {
  PlannerOptions options;
  options.num_workers = 1;
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok()) << planner.status().to_string();
  const Batch batch({1, 40, 0, 1}, {100, 40, 7, 0}, 16);
  ASSERT_TRUE(planner->plan(batch.view()).ok());
  const abi::PlanView view = planner->view();
  EXPECT_EQ(view.header->num_rows, 42u);
  EXPECT_EQ(view.header->num_merges, 0u);
  EXPECT_EQ(view.header->num_partial_rows, 0u);
  ASSERT_EQ(view.header->num_items, 4u);          // 1 + 2 tiles of 32 and 8 tokens + 1 without tokens
  EXPECT_EQ(view.header->num_queue_entries, 4u);  // of all 8 heads each
  EXPECT_EQ(view.items[0].kv_end, 100u);
  EXPECT_EQ(view.items[0].flags & abi::kItemMasked, 0);
  EXPECT_EQ(view.items[1].kv_end, 32u);
  EXPECT_NE(view.items[1].flags & abi::kItemMasked, 0);
  EXPECT_EQ(view.items[2].kv_end, 40u);
  EXPECT_EQ(view.items[3].kv_begin, view.items[3].kv_end);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_NE(view.items[i].flags & abi::kItemDirect, 0);
}

TEST(PlannerTest, SplitsALongRequestAtBlockBounds) {
  PlannerOptions options;
  options.num_workers = 4;
  options.num_qo_heads = 4;
  options.num_kv_heads = 1;
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok());
  const Batch batch({1}, {8000}, 16);
  ASSERT_TRUE(planner->plan(batch.view()).ok());
  const abi::PlanView view = planner->view();
  ASSERT_EQ(view.header->num_items, 4u);
  ASSERT_EQ(view.header->num_merges, 1u);
  EXPECT_EQ(view.merges[0].num_parts, 4);
  for (std::uint32_t i = 0; i + 1 < 4; ++i) {
    EXPECT_EQ(view.items[i].kv_end % 64, 0u);
    EXPECT_EQ(view.items[i].kv_end, view.items[i + 1].kv_begin);
  }
  EXPECT_EQ(planner->stats().split_rows, 1u);
}

TEST(PlannerTest, SharedPrefixIsReadOnce) {
  PlannerOptions options;
  options.num_workers = 2;
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok());
  Batch batch({1, 1, 1}, {1030, 1040, 1050}, 16);
  for (int i = 1; i < 3; ++i) std::copy_n(batch.table.begin(), 64, batch.table.begin() + i * batch.stride);
  ASSERT_TRUE(planner->plan(batch.view()).ok());
  const abi::PlanView view = planner->view();
  ASSERT_EQ(view.header->num_block_rows, 4u);
  EXPECT_EQ(view.block_rows[0].num_requests, 3u);
  EXPECT_EQ(view.block_rows[0].num_tokens, 1024u);
  EXPECT_EQ(view.block_rows[1].position_base, 1024);
  EXPECT_EQ(view.header->num_merges, 3u * 8u);
  const PlanStats stats = planner->stats();
  EXPECT_EQ(stats.kv_bytes_unshared, (1030u + 1040u + 1050u) * 8u * 512u);
  EXPECT_EQ(stats.kv_bytes, (1024u + 6u + 16u + 26u) * 8u * 512u);
}

// Lists of their own beginnings give the plan of the table that they make, but for where lists begin; without host
// entries nothing is shared.
TEST(PlannerTest, ListsInsteadOfATable) {
  PlannerOptions options;
  options.num_workers = 3;
  auto of_table = Planner::create(options);
  auto of_lists = Planner::create(options);
  ASSERT_TRUE(of_table.ok() && of_lists.ok());
  Batch batch({1, 1, 1}, {1030, 1040, 1050}, 16);
  for (int i = 1; i < 3; ++i) std::copy_n(batch.table.begin(), 64, batch.table.begin() + i * batch.stride);
  ASSERT_TRUE(of_table->plan(batch.view()).ok());
  std::vector<std::int32_t> packed;
  std::vector<std::int64_t> begins(3);
  for (const std::size_t i : {2, 0, 1}) {
    begins[i] = static_cast<std::int64_t>(packed.size());
    const auto row = batch.table.begin() + static_cast<std::ptrdiff_t>(i) * batch.stride;
    packed.insert(packed.end(), row, row + 66);
  }
  AttentionBatch lists = batch.view();
  lists.page_table = packed.data();
  lists.page_table_stride = 0;
  lists.list_begins = begins.data();
  ASSERT_TRUE(of_lists->plan(lists).ok());
  const abi::PlanView a = of_table->view();
  const abi::PlanView b = of_lists->view();
  ASSERT_EQ(a.header->num_items, b.header->num_items);
  EXPECT_EQ(b.header->num_block_rows, 4u);
  for (std::uint32_t i = 0; i < a.header->num_items; ++i) {
    EXPECT_EQ(a.items[i].kv_begin, b.items[i].kv_begin);
    const std::uint32_t entry = a.items[i].kv_begin / 16;
    EXPECT_EQ(a.page_entries[a.items[i].list_begin + entry], b.page_entries[b.items[i].list_begin + entry]);
  }
  lists.page_table = nullptr;
  ASSERT_TRUE(of_lists->plan(lists).ok());
  EXPECT_EQ(of_lists->view().header->num_block_rows, 3u);
  begins[1] = -1;
  EXPECT_EQ(of_lists->plan(lists).code(), StatusCode::kInvalidArgument);
}

TEST(PlannerTest, TheTimelineKeepsTheLargestEntries) {
  PlannerOptions options;
  options.num_workers = 3;
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok());
  const Batch batch({1, 1, 1, 1}, {1000, 300, 300, 20}, 16);
  ASSERT_TRUE(planner->plan(batch.view()).ok());
  const std::vector<TimelineEntry> all = plan_timeline(*planner);
  const abi::PlanView view = planner->view();
  std::size_t heads = 0;
  for (std::uint32_t q = 0; q < view.header->num_queue_entries; ++q) {
    heads += view.queue_head_end(q) - abi::queue_head(view.queue[q]);
  }
  ASSERT_EQ(all.size(), heads);
  EXPECT_GT(heads, view.header->num_queue_entries);
  std::vector<std::uint64_t> costs;
  std::uint64_t total = 0, end = 0;
  for (const TimelineEntry& entry : all) {
    costs.push_back(entry.cost);
    total += entry.cost;
    end = std::max(end, entry.begin + entry.cost);
  }
  EXPECT_EQ(total, planner->stats().total_cost);
  EXPECT_EQ(end, planner->stats().max_worker_cost);
  std::vector<TimelineEntry> some = all;
  EXPECT_EQ(keep_largest(some, all.size()), 0u);
  EXPECT_EQ(some.size(), all.size());
  EXPECT_EQ(keep_largest(some, 10), all.size() - 10);  // all heads of a request cost the same: a tie at the bound
  ASSERT_EQ(some.size(), 10u);
  std::sort(costs.rbegin(), costs.rend());
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_GE(some[i].cost, costs[9]);
    EXPECT_TRUE(i == 0 || some[i - 1].worker < some[i].worker || some[i - 1].begin < some[i].begin);
  }
}

TEST(PlannerTest, RefusesBadInput) {
  PlannerOptions options;
  options.limits = {4, 64, 10, 0, 0};
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok());
  const auto plan = [&](Batch batch) { return planner->plan(batch.view()).code(); };
  EXPECT_EQ(plan(Batch({-1}, {5}, 16)), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan(Batch({1}, {-5}, 16)), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan(Batch({1}, {161}, 16)), StatusCode::kOutOfRange);
  EXPECT_EQ(plan(Batch({65}, {65}, 16)), StatusCode::kOutOfRange);
  EXPECT_EQ(plan(Batch({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, 16)), StatusCode::kOutOfRange);
  Batch narrow({1}, {160}, 16);
  narrow.stride = 9;
  EXPECT_EQ(planner->plan(narrow.view()).code(), StatusCode::kOutOfRange);
  EXPECT_TRUE(planner->plan(Batch({1}, {160}, 16).view()).ok());
  options.num_kv_heads = 5;
  EXPECT_EQ(Planner::create(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea
