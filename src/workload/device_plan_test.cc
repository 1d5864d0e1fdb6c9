// A packed plan says the same as the plan it was packed from, and finds every merge from its partial rows.
#include "core/plan/device_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "testing/device_plan_view.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea {
namespace {

template <typename T>
const T* section(const std::vector<std::byte>& buffer, std::uint32_t offset) {
  return reinterpret_cast<const T*>(buffer.data() + offset);
}

Planner planned(const PagedBatch& batch, int workers, bool share) {
  PlannerOptions options;
  options.share_prefixes = share;
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
    Planner planner = planned(*batch, 33, true);
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

// What the kernel of warps makes of it: the pairs of every worker, which part of them, and where those go.
TEST(DevicePlanTest, WarpsFindTheirWorkByWhereTheyBegin) {
  int busy = 0, parts = 0, idle = 0, whole = 0, of_no_head = 0;
  for (const auto& [requests, tokens, workers] :
       {std::array{40, 900, 1024}, {256, 4096, 1024}, {3, 5000, 400}, {1, 70, 64}, {7, 0, 16}, {2, 100000, 61}}) {
    for (const char* kind : {"constant", "zipf", "uniform"}) {
      SCOPED_TRACE(testing::Message() << requests << " " << tokens << " " << kind);
      const std::vector<std::int32_t> lengths =
          tokens == 0 ? constant_lengths(requests, 0) : named_lengths(kind, requests, tokens, 7).value();
      const PagedBatch batch = flat_batch(constant_lengths(requests, 1), lengths, 16, PageOrder::kRandom, 1);
      Planner planner = planned(batch, workers, false);
      const abi::PlanView plan = planner.view();
      std::vector<std::byte> buffer(max_device_plan_bytes(planner, false, WorkerStarts::kWarps));
      const std::size_t bytes = pack_device_plan(plan, buffer, {}, WorkerStarts::kWarps).value();
      abi::DevicePlanHeader header;
      std::memcpy(&header, buffer.data(), sizeof header);
      EXPECT_EQ(header.bytes, bytes);
      EXPECT_EQ(header.counts.flags, abi::kPlanWarpStarts);
      ASSERT_EQ(header.counts.num_items, static_cast<std::uint32_t>(requests));

      const DevicePlanView unpacked(reinterpret_cast<const std::uint8_t*>(buffer.data()));
      const abi::PlanView& found = unpacked.view;
      ASSERT_EQ(found.header->num_queue_entries, plan.header->num_queue_entries);
      ASSERT_EQ(found.header->num_merges, plan.header->num_merges);
      ASSERT_EQ(found.header->num_parts, plan.header->num_parts);
      ASSERT_EQ(found.header->num_partial_rows, plan.header->num_partial_rows);
      for (int w = 0; w <= workers; ++w) ASSERT_EQ(found.queue_begin[w], plan.queue_begin[w]) << w;
      for (int w = 0; w < workers; ++w) idle += plan.queue_begin[w] == plan.queue_begin[w + 1];
      busy += workers;
      for (std::uint32_t e = 0; e < plan.header->num_queue_entries; ++e) {
        EXPECT_EQ(abi::queue_head(found.queue[e]), abi::queue_head(plan.queue[e]));
        const abi::WorkItem& item = found.items[abi::queue_item(found.queue[e])];
        EXPECT_EQ(std::memcmp(&item, &plan.items[abi::queue_item(plan.queue[e])], sizeof item), 0) << e;
        parts += item.partial_slot != abi::kNone;
        whole += item.partial_slot == abi::kNone;
      }
      for (std::uint32_t m = 0; m < plan.header->num_merges; ++m) {
        const abi::MergeEntry& wanted = plan.merges[m];
        const abi::MergeEntry& merge = found.merges[m];
        EXPECT_EQ(merge.row, wanted.row);
        EXPECT_EQ(merge.head, wanted.head);
        ASSERT_EQ(merge.num_parts, wanted.num_parts);
        EXPECT_EQ(std::memcmp(found.merge_parts + merge.parts_begin, plan.merge_parts + wanted.parts_begin,
                              wanted.num_parts * sizeof(std::uint32_t)),
                  0);
      }
      // Tiles whose every head is divided have no item in the plan itself.
      std::set<std::uint32_t> undivided;
      for (std::uint32_t i = 0; i < plan.header->num_items; ++i) {
        if (!(plan.items[i].flags & abi::kItemSingleHead)) undivided.insert(plan.items[i].row_begin);
      }
      of_no_head += requests - static_cast<int>(undivided.size());
    }
  }
  for (const int reached : {busy - idle, idle, parts, whole, of_no_head}) EXPECT_GT(reached, 10);
}

TEST(DevicePlanTest, WarpsTakeNeitherSharedRunsNorChunks) {
  const auto refused = [](const Planner& planner) {
    std::vector<std::byte> buffer(1 << 20);
    const Result<std::size_t> bytes = pack_device_plan(planner.view(), buffer, {}, WorkerStarts::kWarps);
    return !bytes.ok() && bytes.status().code() == StatusCode::kUnsupported;
  };
  const PagedBatch tree = tree_batch(PrefixTree{{1, 4, 32}, {512, 96, 40}}, 16, 1, PageOrder::kRandom, 2);
  EXPECT_TRUE(refused(planned(tree, 33, true)));
  EXPECT_FALSE(refused(planned(tree, 33, false)));
  PlannerOptions options;
  options.batch_invariant = true;
  options.share_prefixes = false;
  options.page_tokens = tree.page_tokens;
  options.limits = tree.limits();
  Planner chunks = Planner::create(options).value();
  ASSERT_TRUE(chunks.plan(tree.view()).ok());
  EXPECT_TRUE(refused(chunks));
}

TEST(DevicePlanTest, ABatchOf256RequestsTakesAtMost64KilobytesAndASmallBufferIsRefused) {
  for (const char* kind : {"constant", "zipf", "uniform", "one_long"}) {
    for (const WorkerStarts starts : {WorkerStarts::kItems, WorkerStarts::kWarps}) {
      const std::vector<std::int32_t> lengths = named_lengths(kind, 256, 4096, 7).value();
      const PagedBatch batch = flat_batch(constant_lengths(256, 1), lengths, 16, PageOrder::kRandom, 1);
      Planner planner = planned(batch, starts == WorkerStarts::kWarps ? 1024 : 132, false);
      std::vector<std::byte> buffer(max_device_plan_bytes(planner, false, starts));
      const Result<std::size_t> bytes = pack_device_plan(planner.view(), buffer, {}, starts);
      ASSERT_TRUE(bytes.ok());
      EXPECT_LE(*bytes, 65536u);
      std::vector<std::byte> growing(max_device_plan_bytes(planner, true, starts));
      const Result<std::size_t> with_growth = pack_device_plan(planner.view(), growing, planner.growth(), starts);
      ASSERT_TRUE(with_growth.ok());
      EXPECT_GT(*with_growth, *bytes);
      EXPECT_LE(*with_growth, 65536u) << kind;
      EXPECT_EQ(pack_device_plan(planner.view(), std::span(buffer).first(*bytes - 1), {}, starts).status().code(),
                StatusCode::kOutOfRange);
    }
  }
}

}  // namespace
}  // namespace fovea
