// The tile and cut steps alone: tile classes, KV bounds by mask, cut points, slivers, costs.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/schedule/cut.h"
#include "core/schedule/tile.h"

namespace fovea {
namespace {

constexpr abi::CostModel kCost{4096, 512, 1032, 512, 8};

abi::BlockRow block_row(std::uint32_t rows, std::uint32_t tokens, abi::MaskKind mask, std::int32_t window = -1) {
  abi::BlockRow b{};
  b.row_count = rows;
  b.num_tokens = tokens;
  b.positions_begin = abi::kNone;
  b.length_slot = 0;
  b.head_end = 2;
  b.mask = mask;
  b.window_left = window;
  b.flags = abi::kRowsContiguous | abi::kRowsSolo;
  return b;
}

// Memory for the output of the steps.
struct Schedule {
  std::vector<std::byte> memory;
  FixedVector<PlanTile> tiles;
  FixedVector<abi::WorkItem> items;
  FixedVector<SplitPair> splits;
  FixedVector<std::uint32_t> queue;
  bool head_runs = true;
  std::vector<std::uint32_t> tile_begin = std::vector<std::uint32_t>(65);
  std::vector<std::uint32_t> queue_begin = std::vector<std::uint32_t>(200);
  std::vector<std::uint64_t> worker_cost = std::vector<std::uint64_t>(200);
  std::vector<CutPoint> cuts = std::vector<CutPoint>(200);
  std::vector<CutPoint> other_cuts = std::vector<CutPoint>(200);

  Schedule() {
    Carver measure(nullptr);
    carve(measure);
    memory.resize(measure.used() + Carver::kAlignment);
    Carver fill(memory.data());
    carve(fill);
  }
  void carve(Carver& carver) {
    tiles.carve(carver, 1000);
    items.carve(carver, 2000);
    splits.carve(carver, 200);
    queue.carve(carver, 4000);
  }
  void make(const std::vector<abi::BlockRow>& rows, const std::vector<std::int32_t>& q_pos, const TileConfig& config) {
    make_tiles(rows.data(), static_cast<std::uint32_t>(rows.size()), q_pos.data(), config, tiles, tile_begin.data());
  }
  ScheduleOutput output() { return {&items, &splits, &queue, queue_begin.data(), worker_cost.data(), 0, head_runs}; }
};

TEST(TileTest, ClassesHoldTheirRows) {
  EXPECT_EQ(tile_class_of(1), 0);
  EXPECT_EQ(tile_class_of(16), 0);
  EXPECT_EQ(tile_class_of(17), 1);
  EXPECT_EQ(tile_class_of(128), 3);
}

TEST(TileTest, CausalTilesEndAtTheirLastRow) {
  Schedule s;
  std::vector<std::int32_t> q_pos;
  for (int i = 0; i < 70; ++i) q_pos.push_back(30 + i);
  s.make({block_row(70, 100, abi::MaskKind::kCausal)}, q_pos, {4, 128, 64, false, kCost});
  ASSERT_EQ(s.tiles.size, 3u);
  EXPECT_EQ(s.tiles[0].row_count, 32);
  EXPECT_EQ(s.tiles[0].kv_end, 62u);
  EXPECT_EQ(s.tiles[1].kv_end, 94u);
  EXPECT_EQ(s.tiles[2].row_count, 6);
  EXPECT_EQ(s.tiles[2].tile_class, 1);
  EXPECT_EQ(s.tiles[2].kv_end, 100u);
}

TEST(TileTest, WindowsBeginAtTheirFirstRow) {
  Schedule s;
  const std::vector<std::int32_t> q_pos = {998, 999};
  const std::vector<abi::BlockRow> rows = {block_row(2, 1000, abi::MaskKind::kWindow, 100)};
  s.make(rows, q_pos, {4, 128, 64, false, kCost});
  EXPECT_EQ(s.tiles[0].kv_begin, 898u);
  EXPECT_TRUE(may_mask(rows[0], s.tiles[0], 898, 950));  // token 898 is hidden from the second row
  EXPECT_FALSE(may_mask(rows[0], s.tiles[0], 899, 999));
  EXPECT_TRUE(may_mask(rows[0], s.tiles[0], 899, 1000));  // token 999 is hidden from the first row
  Schedule aligned;
  aligned.make(rows, q_pos, {4, 128, 64, true, kCost});
  EXPECT_EQ(aligned.tiles[0].kv_begin, 896u);
}

TEST(TileTest, RowsBeforeTheRunSeeNothing) {
  Schedule s;
  s.make({block_row(1, 64, abi::MaskKind::kCausal)}, {-3}, {4, 128, 64, false, kCost});
  EXPECT_EQ(s.tiles[0].tokens(), 0u);
}

TEST(CutTest, SpansAreEvenAndOnBlockBounds) {
  for (const std::uint32_t workers : {1u, 2u, 3u, 7u, 40u, 132u}) {
    Schedule s;
    std::vector<abi::BlockRow> rows;
    std::vector<std::int32_t> q_pos;
    for (std::uint32_t i = 0; i < 13; ++i) {
      const std::uint32_t tokens = 4000 + 3777 * i;
      rows.push_back(block_row(1, tokens, abi::MaskKind::kCausal));
      rows.back().row_begin = i;
      q_pos.push_back(static_cast<std::int32_t>(tokens) - 1);
    }
    s.make(rows, q_pos, {4, 128, 64, false, kCost});
    CutConfig config{workers, 1, 4, 64, 0, kCost};
    cut_tiles(s.tiles, config, s.cuts.data(), s.other_cuts.data(), s.worker_cost.data());
    ScheduleOutput out = s.output();
    emit_spans(rows.data(), s.tiles, s.cuts.data(), config, out);
    EXPECT_LE(s.splits.size, workers - 1);
    const double even = static_cast<double>(total_cost(s.tiles)) / workers;
    for (std::uint32_t w = 0; w < workers; ++w) {
      EXPECT_LT(static_cast<double>(s.worker_cost[w]), 1.02 * even + 1.0) << workers << " workers, worker " << w;
    }
    for (std::uint32_t k = 0; k + 1 < workers; ++k) {
      EXPECT_EQ(s.cuts[k].token == abi::kNone ? 0u : s.cuts[k].token % 64, 0u);
    }
  }
}

TEST(CutTest, NoPartIsShorterThanTheLeast) {
  const std::uint32_t least = abi::min_part_tokens(kCost, 4, 16);
  EXPECT_GE(std::uint64_t{least} * kCost.token, kCost.item + 4 * (kCost.row + kCost.partial_row));
  std::size_t parts = 0;
  for (std::uint32_t tokens = 1; tokens < 600; tokens += 7) {
    for (const std::uint32_t workers : {2u, 3u, 5u, 50u}) {
      Schedule s;
      std::vector<abi::BlockRow> rows;
      for (std::uint32_t i = 0; i < 5; ++i) {
        rows.push_back(block_row(1, tokens + 31 * i, abi::MaskKind::kNone));
        rows.back().row_begin = i;
      }
      const std::vector<std::int32_t> q_pos(5, 1000);
      s.make(rows, q_pos, {4, 128, 16, false, kCost});
      CutConfig config{workers, 1, 4, 16, 0, kCost};
      cut_tiles(s.tiles, config, s.cuts.data(), s.other_cuts.data(), s.worker_cost.data());
      ScheduleOutput out = s.output();
      emit_spans(rows.data(), s.tiles, s.cuts.data(), config, out);
      for (const abi::WorkItem& item : s.items) {
        if ((item.flags & abi::kItemSingleHead) == 0) continue;
        EXPECT_GE(item.kv_end - item.kv_begin, least);
        ++parts;
      }
    }
  }
  EXPECT_GT(parts, 100u);
}

TEST(CutTest, MoreWorkersThanWorkLeavesSomeIdle) {
  Schedule s;
  const std::vector<abi::BlockRow> rows = {block_row(1, 10, abi::MaskKind::kNone)};
  s.make(rows, {9}, {4, 128, 64, false, kCost});
  CutConfig config{50, 1, 4, 64, 0, kCost};
  cut_tiles(s.tiles, config, s.cuts.data(), s.other_cuts.data(), s.worker_cost.data());
  ScheduleOutput out = s.output();
  emit_spans(rows.data(), s.tiles, s.cuts.data(), config, out);
  EXPECT_EQ(s.items.size, 1u);
  EXPECT_EQ(s.queue.size, 2u);
  EXPECT_EQ(s.queue_begin[50], 2u);
}

TEST(CutTest, HeadsOfAWorkerAreOneEntry) {
  Schedule s;
  const std::vector<abi::BlockRow> rows = {block_row(1, 1000, abi::MaskKind::kNone)};
  s.make(rows, {999}, {4, 128, 64, false, kCost});
  for (const auto& [workers, runs, heads] : {std::array{1u, 1u, 2u}, {2u, 2u, 2u}, {3u, 4u, 4u}}) {
    CutConfig config{workers, 1, 4, 64, 0, kCost};
    cut_tiles(s.tiles, config, s.cuts.data(), s.other_cuts.data(), s.worker_cost.data());
    for (const bool head_runs : {true, false}) {
      s.head_runs = head_runs;
      ScheduleOutput out = s.output();
      emit_spans(rows.data(), s.tiles, s.cuts.data(), config, out);
      EXPECT_EQ(s.queue.size, head_runs ? runs : heads) << workers;
      EXPECT_EQ(s.queue_begin[workers], s.queue.size);
    }
  }
}

TEST(CutTest, WiderTilesCostMoreOnlyBeyondTheBalance) {
  EXPECT_EQ(abi::token_cost(kCost, 1), 512u);
  EXPECT_EQ(abi::token_cost(kCost, 8), 512u);
  EXPECT_EQ(abi::token_cost(kCost, 128), 8192u);
  EXPECT_EQ(abi::item_cost(kCost, 4, 100, true), 4096u + 4u * (512u + 1032u) + 100u * 512u);
}

}  // namespace
}  // namespace fovea
