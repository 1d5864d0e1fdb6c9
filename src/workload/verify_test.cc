// The verifier of plans must notice: each test breaks one thing in a copy of a good plan.
#include "core/plan/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea {
namespace {

// A plan whose arrays may be changed.
struct Copy {
  abi::PlanHeader header;
  std::vector<abi::WorkItem> items;
  std::vector<abi::BlockRow> block_rows;
  std::vector<std::uint32_t> queue_begin, queue, rows, parts;
  std::vector<std::int32_t> q_pos, pages;
  std::vector<abi::MergeEntry> merges;
  abi::PlanView view;

  Copy(const abi::PlanView& v, const PagedBatch& batch)
      : header(*v.header),
        items(v.items, v.items + header.num_items),
        block_rows(v.block_rows, v.block_rows + header.num_block_rows),
        queue_begin(v.queue_begin, v.queue_begin + v.launches[0].num_workers + 1),
        queue(v.queue, v.queue + header.num_queue_entries + 1),
        rows(v.row_indices, v.row_indices + 2 * header.num_rows),
        parts(v.merge_parts, v.merge_parts + header.num_parts),
        q_pos(v.q_pos, v.q_pos + 2 * header.num_rows),
        pages(batch.page_table),
        merges(v.merges, v.merges + header.num_merges),
        view(v) {
    view.header = &header;
    view.items = items.data();
    view.block_rows = block_rows.data();
    view.queue_begin = queue_begin.data();
    view.queue = queue.data();
    view.row_indices = rows.data();
    view.q_pos = q_pos.data();
    view.merges = merges.data();
    view.merge_parts = parts.data();
    view.page_entries = pages.data();
  }
};

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest()
      : batch_(tree_batch({{1, 2, 8}, {512, 256, 200}}, 16, 1, PageOrder::kRandom, 3)), planner_(make(batch_)) {}

  static Planner make(const PagedBatch& batch) {
    PlannerOptions options;
    options.num_workers = 5;
    options.limits = batch.limits();
    auto planner = Planner::create(options);
    EXPECT_TRUE(planner.ok() && planner->plan(batch.view()).ok());
    return std::move(*planner);
  }
  bool valid(const std::function<void(Copy&)>& change) const {
    Copy copy(planner_.view(), batch_);
    change(copy);
    return verify_schedule(copy.view, planner_.max_partial_rows()).ok() &&
           verify_packing(copy.view, batch_.view(), 16).ok();
  }

  PagedBatch batch_;
  Planner planner_;
};

TEST_F(VerifyTest, AcceptsAGoodPlan) {
  EXPECT_TRUE(valid([](Copy&) {}));
}

TEST_F(VerifyTest, NoticesBrokenPlans) {
  EXPECT_FALSE(valid([](Copy& c) { c.items[3].kv_end -= 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[3].kv_begin += 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[0].flags ^= abi::kItemMasked; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[0].partial_slot += 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[1].list_begin += 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[1].row_count = 200; }));
  EXPECT_FALSE(valid([](Copy& c) { c.items[1].block_row = 1000; }));
  EXPECT_FALSE(valid([](Copy& c) { c.queue[5] = c.queue[6]; }));
  EXPECT_FALSE(valid([](Copy& c) { c.queue[c.header.num_queue_entries] = 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.header.flags ^= abi::kPlanHeadRuns; }));
  EXPECT_FALSE(valid([](Copy& c) { c.queue_begin[1] += 1000; }));
  EXPECT_FALSE(valid([](Copy& c) { c.header.num_queue_entries -= 1; }));
  EXPECT_FALSE(valid([](Copy& c) { std::swap(c.parts[0], c.parts[1]); }));
  EXPECT_FALSE(valid([](Copy& c) { c.merges[0].num_parts -= 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.merges[0].row = c.merges[20].row; }));
  EXPECT_FALSE(valid([](Copy& c) { c.header.num_merges -= 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.header.num_partial_rows = 1u << 30; }));
  EXPECT_FALSE(valid([](Copy& c) { c.block_rows[0].num_tokens -= 16; }));
  EXPECT_FALSE(valid([](Copy& c) { c.block_rows[1].position_base += 16; }));
  EXPECT_FALSE(valid([](Copy& c) { c.block_rows[4].mask = abi::MaskKind::kWindow; }));
  EXPECT_FALSE(valid([](Copy& c) { c.pages[0] += 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.q_pos[2] -= 1; }));
  EXPECT_FALSE(valid([](Copy& c) { c.rows[c.block_rows[0].row_begin] ^= 1; }));
}

}  // namespace
}  // namespace fovea
