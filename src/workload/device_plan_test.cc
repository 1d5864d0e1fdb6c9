// A packed plan says the same as the plan it was packed from, and finds every merge from its partial rows.
#include "core/plan/device_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea {
namespace {

template <typename T>
const T* section(const std::vector<std::byte>& buffer, std::uint32_t offset) {
  return reinterpret_cast<const T*>(buffer.data() + offset);
}

Planner planned(const PagedBatch& batch, int workers) {
  PlannerOptions options;
  options.share_prefixes = workers < 1024;
  options.num_workers = workers;
  options.tile_rows = 128;
  options.page_tokens = batch.page_tokens;
  options.cost_balance_rows = 100;
  options.limits = batch.limits();
  Planner planner = Planner::create(options).value();
  EXPECT_TRUE(planner.plan(batch.view()).ok());
  return planner;
}

TEST(DevicePlanTest, SaysWhatThePlanSays) {
  const PagedBatch flat = flat_batch(constant_lengths(40, 1), constant_lengths(40, 900), 16, PageOrder::kRandom, 1);
  const PagedBatch tree = tree_batch(PrefixTree{{1, 4, 32}, {512, 96, 40}}, 16, 1, PageOrder::kRandom, 2);
  for (const PagedBatch* batch : {&flat, &tree}) {
    Planner planner = planned(*batch, 33);
    const abi::PlanView plan = planner.view();
    std::vector<std::byte> buffer(max_device_plan_bytes(planner));
    const std::size_t bytes = pack_device_plan(plan, buffer).value();
    ASSERT_LE(bytes, buffer.size());
    abi::DevicePlanHeader header;
    std::memcpy(&header, buffer.data(), sizeof header);
    EXPECT_EQ(header.bytes, bytes);
    EXPECT_EQ(header.num_workers, 33u);
    EXPECT_GT(header.counts.num_merges, 0u);
    EXPECT_LE(header.counts.num_merges, max_device_plan_merges(planner));
    EXPECT_EQ(std::memcmp(section<abi::WorkItem>(buffer, header.items), plan.items,
                          header.counts.num_items * sizeof(abi::WorkItem)),
              0);
    EXPECT_EQ(std::memcmp(section<abi::BlockRow>(buffer, header.block_rows), plan.block_rows,
                          header.counts.num_block_rows * sizeof(abi::BlockRow)),
              0);
    const auto* queue = section<std::uint32_t>(buffer, header.queue);
    const auto* starts = section<abi::WorkerStart>(buffer, abi::kWorkerStartOffset);
    std::uint32_t entries = 0;
    for (std::uint32_t w = 0; w < header.num_workers; ++w) {
      EXPECT_EQ(starts[w].queue_begin, entries);
      entries = starts[w].queue_end;
      if (starts[w].queue_begin == starts[w].queue_end) continue;
      const std::uint32_t entry = queue[starts[w].queue_begin];
      EXPECT_EQ(starts[w].head, abi::queue_head(entry));
      EXPECT_EQ(std::memcmp(&starts[w].item, &plan.items[abi::queue_item(entry)], sizeof(abi::WorkItem)), 0);
    }
    EXPECT_EQ(entries, header.counts.num_queue_entries);

    // Every partial row of every queued item leads to a merge that lists it.
    const auto* merge_of_partial = section<std::uint32_t>(buffer, header.merge_of_partial);
    const auto* merges = section<abi::MergeEntry>(buffer, header.merges);
    const auto* parts = section<std::uint32_t>(buffer, header.merge_parts);
    const auto* row_indices = section<std::uint32_t>(buffer, header.row_indices);
    const std::uint32_t group = header.counts.group;
    std::uint32_t found = 0;
    for (std::uint32_t e = 0; e < entries; ++e) {
      const abi::WorkItem& item = plan.items[abi::queue_item(queue[e])];
      if (item.flags & abi::kItemDirect) continue;
      const std::uint32_t head = abi::queue_head(queue[e]);
      const std::uint32_t first = abi::partial_row(item, plan.block_rows[item.block_row], head, group);
      for (std::uint32_t i = 0; i < item.row_count; ++i) {
        const abi::MergeEntry& merge = merges[merge_of_partial[first / group + i]];
        EXPECT_EQ(merge.row, row_indices[item.row_begin + i]);
        EXPECT_EQ(merge.head, head);
        bool listed = false;
        for (std::uint32_t p = 0; p < merge.num_parts; ++p) {
          listed |= parts[merge.parts_begin + p] == first + i * group;
        }
        EXPECT_TRUE(listed);
        ++found;
      }
    }
    EXPECT_EQ(found, header.counts.num_parts);
  }
}

TEST(DevicePlanTest, WarpsBeginByTheRunOfTheirFirstItem) {
  const PagedBatch batch = flat_batch(constant_lengths(40, 1), constant_lengths(40, 900), 16, PageOrder::kRandom, 1);
  Planner planner = planned(batch, 1024);
  const abi::PlanView plan = planner.view();
  std::vector<std::byte> buffer(max_device_plan_bytes(planner, false, WorkerStarts::kWarps));
  ASSERT_TRUE(pack_device_plan(plan, buffer, {}, WorkerStarts::kWarps).ok());
  abi::DevicePlanHeader header;
  std::memcpy(&header, buffer.data(), sizeof header);
  EXPECT_EQ(header.counts.flags, abi::kPlanWarpStarts);
  EXPECT_EQ(std::memcmp(section<abi::WorkItem>(buffer, header.items), plan.items,
                        header.counts.num_items * sizeof(abi::WorkItem)),
            0);
  const auto* starts = section<abi::WarpStart>(buffer, abi::kWorkerStartOffset);
  int busy = 0;
  for (std::uint32_t w = 0; w < 1024; ++w) {
    EXPECT_EQ(starts[w].queue_begin, plan.queue_begin[w]);
    EXPECT_EQ(starts[w + 1].queue_begin, plan.queue_begin[w + 1]);
    if (starts[w].queue_begin == starts[w + 1].queue_begin) continue;
    ++busy;
    EXPECT_EQ(starts[w].entry, plan.queue[plan.queue_begin[w]]);
    const abi::WorkItem& item = plan.items[abi::queue_item(starts[w].entry)];
    EXPECT_EQ(starts[w].list_begin, item.list_begin);
    EXPECT_EQ(starts[w].kv_begin, item.kv_begin);
    EXPECT_EQ(starts[w].kv_end, item.kv_end);
    EXPECT_EQ(starts[w].partial_slot, item.partial_slot);
  }
  EXPECT_GT(busy, 500);
}

// Lengths alike, as the issue asks; lengths that differ take more under warps (docs/plan.md).
TEST(DevicePlanTest, ABatchOf256RequestsTakesAtMost64KilobytesAndASmallBufferIsRefused) {
  const PagedBatch batch = flat_batch(constant_lengths(256, 1), constant_lengths(256, 4096), 16, PageOrder::kRandom, 1);
  for (const WorkerStarts starts : {WorkerStarts::kItems, WorkerStarts::kWarps}) {
    Planner planner = planned(batch, starts == WorkerStarts::kWarps ? 1024 : 132);
    std::vector<std::byte> buffer(max_device_plan_bytes(planner, false, starts));
    const Result<std::size_t> bytes = pack_device_plan(planner.view(), buffer, {}, starts);
    ASSERT_TRUE(bytes.ok());
    EXPECT_LE(*bytes, 65536u);
    std::vector<std::byte> growing(max_device_plan_bytes(planner, true, starts));
    const Result<std::size_t> with_growth = pack_device_plan(planner.view(), growing, planner.growth(), starts);
    ASSERT_TRUE(with_growth.ok());
    EXPECT_GT(*with_growth, *bytes);
    EXPECT_LE(*with_growth, 65536u);
    EXPECT_EQ(pack_device_plan(planner.view(), std::span(buffer).first(*bytes - 1), {}, starts).status().code(),
              StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace fovea
