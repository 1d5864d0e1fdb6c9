// The planner's second entry, block rows made by a caller: sparse heads, selected pages, cascades.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/random.h"
#include "core/plan/planner.h"
#include "core/plan/verify.h"

namespace fovea {
namespace {

struct Rows {
  std::int32_t num_rows = 0;
  std::vector<abi::BlockRow> block_rows;
  std::vector<std::uint32_t> row_indices;
  std::vector<std::int32_t> q_pos;
  std::vector<std::int32_t> pages = std::vector<std::int32_t>(4096);
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> kv_lens = {1000};

  explicit Rows(std::int32_t rows) : num_rows(rows), row_indices(static_cast<std::size_t>(rows)) {
    std::iota(row_indices.begin(), row_indices.end(), 0u);
    q_pos.assign(static_cast<std::size_t>(rows), 999);
  }
  abi::BlockRow& add(std::uint32_t row_begin, std::uint32_t row_count, std::uint32_t tokens, std::int32_t base,
                     std::uint16_t head_begin = 0, std::uint16_t head_end = 4) {
    abi::BlockRow b{};
    b.row_begin = row_begin;
    b.row_count = row_count;
    b.num_tokens = tokens;
    b.position_base = base;
    b.positions_begin = abi::kNone;
    b.length_slot = abi::kNone;
    b.window_left = -1;
    b.head_begin = head_begin;
    b.head_end = head_end;
    b.num_requests = 1;
    block_rows.push_back(b);
    return block_rows.back();
  }
  BlockRowBatch view() const {
    BlockRowBatch batch;
    batch.num_rows = num_rows;
    batch.block_rows = block_rows;
    batch.row_indices = row_indices;
    batch.q_pos = q_pos;
    batch.page_entries = pages.data();
    batch.kv_positions = positions.empty() ? nullptr : positions.data();
    batch.kv_lens = kv_lens;
    return batch;
  }
};

PlannerOptions options() {
  PlannerOptions o;
  o.num_qo_heads = 16;
  o.num_kv_heads = 4;
  o.num_workers = 7;
  o.limits = {16, 256, 64, 2048, 512};
  return o;
}

TEST(BlockRowsTest, HeadsMaySeeDifferentRuns) {
  auto planner = Planner::create(options());
  ASSERT_TRUE(planner.ok());
  Rows rows(2);
  rows.add(0, 2, 1000, 0, 0, 1);   // a dense head
  rows.add(0, 2, 192, 808, 1, 4);  // streaming heads
  ASSERT_TRUE(planner->plan_block_rows(rows.view()).ok());
  const Status status = verify_schedule(planner->view(), planner->max_partial_rows());
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_NE(planner->view().block_rows[0].flags & abi::kRowsSolo, 0);
  EXPECT_NE(planner->view().block_rows[1].flags & abi::kRowsSolo, 0);
}

TEST(BlockRowsTest, PartsMergeInPositionOrderWhateverTheOrderGiven) {
  auto planner = Planner::create(options());
  ASSERT_TRUE(planner.ok());
  Rows rows(3);
  rows.add(0, 3, 96, 512);
  rows.add(0, 3, 64, 0);
  rows.add(1, 1, 128, 256, 1, 3);
  ASSERT_TRUE(planner->plan_block_rows(rows.view()).ok());
  const Status status = verify_schedule(planner->view(), planner->max_partial_rows());
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(BlockRowsTest, RandomBlockRowsAreCoveredOnce) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    PhiloxRng rng(seed, 0xb10c);
    const std::uint32_t n = 1 + rng.next_below(40);
    Rows rows(static_cast<std::int32_t>(n));
    rows.add(0, n, rng.next_below(500), 0);
    for (std::uint32_t i = 0; i < n; ++i) rows.q_pos[i] = static_cast<std::int32_t>(rng.next_below(1000));
    for (std::uint32_t extra = rng.next_below(6); extra > 0; --extra) {
      const std::uint32_t begin = static_cast<std::uint32_t>(rows.row_indices.size());
      const std::uint32_t count = 1 + rng.next_below(n);
      for (std::uint32_t k = 0; k < count; ++k) {
        const std::uint32_t row = (extra * 7 + k) % n;
        rows.row_indices.push_back(row);
        rows.q_pos.push_back(rows.q_pos[row]);
      }
      const std::uint16_t head = static_cast<std::uint16_t>(rng.next_below(4));
      abi::BlockRow& b =
          rows.add(begin, count, rng.next_below(900), static_cast<std::int32_t>(rng.next_below(100)) * 16, head,
                   static_cast<std::uint16_t>(head + 1 + rng.next_below(4u - head)));
      b.mask = rng.next_below(2) ? abi::MaskKind::kCausal : abi::MaskKind::kNone;
      if (rng.next_below(4) == 0) {
        b.positions_begin = 0;
        rows.positions.assign(64, 3);
      }
    }
    PlannerOptions o = options();
    o.num_workers = 1 + static_cast<std::int32_t>(rng.next_below(60));
    o.batch_invariant = rng.next_below(3) == 0;
    o.invariant_chunk = 128;
    auto planner = Planner::create(o);
    ASSERT_TRUE(planner.ok());
    Status status = planner->plan_block_rows(rows.view());
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
    status = verify_schedule(planner->view(), planner->max_partial_rows());
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
  }
}

TEST(BlockRowsTest, RefusesWhatItCannotPlanAndStaysUsable) {
  auto planner = Planner::create(options());
  ASSERT_TRUE(planner.ok());
  const auto code = [&](const Rows& rows) { return planner->plan_block_rows(rows.view()).code(); };
  Rows gap(2);
  gap.add(0, 2, 100, 0, 0, 3);
  EXPECT_EQ(code(gap), StatusCode::kInvalidArgument);  // head 3 of both rows has no run
  EXPECT_EQ(planner->view().header->num_queue_entries, 0u);
  Rows outside(2);
  outside.add(1, 2, 100, 0);
  EXPECT_EQ(code(outside), StatusCode::kInvalidArgument);
  Rows heads(1);
  heads.add(0, 1, 100, 0, 2, 9);
  EXPECT_EQ(code(heads), StatusCode::kInvalidArgument);
  Rows lengthy(1);
  lengthy.add(0, 1, 64 * 16 + 1, 0);
  EXPECT_EQ(code(lengthy), StatusCode::kOutOfRange);
  Rows unordered(2);
  unordered.row_indices = {1, 0};
  unordered.add(0, 2, 10, 0);
  EXPECT_EQ(code(unordered), StatusCode::kInvalidArgument);
  Rows many(200);
  for (int i = 0; i < 12; ++i) many.add(0, 200, 10, 16 * i);
  EXPECT_EQ(code(many), StatusCode::kOutOfRange);
  Rows fine(1);
  fine.add(0, 1, 100, 0);
  EXPECT_TRUE(planner->plan_block_rows(fine.view()).ok());
  EXPECT_EQ(planner->grow(fine.kv_lens.data()).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
