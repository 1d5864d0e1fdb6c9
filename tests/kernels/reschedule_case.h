// Cases of rescheduling of device plans, wherever the kernel runs: random batches, and decode at scale, grown step by
// step; what it leaves is compared with the host's grow() and pack_device_plan(), byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "abi/reschedule_args.h"
#include "core/plan/device_plan.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea::reschedule_case {

inline std::vector<std::byte> packed(const Planner& planner, WorkerStarts starts) {
  std::vector<std::byte> buffer(max_device_plan_bytes(planner, true, starts));
  buffer.resize(pack_device_plan(planner.view(), buffer, planner.growth(), starts).value());
  return buffer;
}

// Bytes of the sections themselves: between them anything may stand.
inline std::vector<std::vector<std::byte>> sections(const std::byte* plan) {
  abi::DevicePlanHeader h;
  std::memcpy(&h, plan, sizeof h);
  abi::GrowthHeader g;
  std::memcpy(&g, plan + h.growth, sizeof g);
  const auto bytes = [&](std::size_t begin, std::size_t count) {
    return std::vector<std::byte>(plan + begin, plan + begin + count);
  };
  const bool warps = (h.counts.flags & abi::kPlanWarpStarts) != 0;
  const bool shares = (h.counts.flags & abi::kPlanShares) != 0;
  return {bytes(0, sizeof h),
          bytes(abi::kWorkerStartOffset, abi::start_bytes(h.num_workers, warps)),
          bytes(h.block_rows, h.counts.num_block_rows * sizeof(abi::BlockRow)),
          bytes(h.row_indices, g.num_row_indices * 4),
          bytes(h.q_pos, g.num_row_indices * 4),
          bytes(h.growth, abi::growth_bytes(g.num_tiles, h.counts.num_rows, g.num_covers)),
          bytes(h.items, h.counts.num_items * sizeof(abi::WorkItem)),
          bytes(h.queue, warps ? 0 : (h.counts.num_queue_entries + 1) * 4),
          bytes(h.merges, h.counts.num_merges * sizeof(abi::DeviceMerge)),
          bytes(h.merge_parts, h.counts.num_parts * 4),
          bytes(h.merge_of_partial, warps || shares ? 0 : h.counts.num_partial_rows / h.counts.group * 4)};
}

// The plan as it lies in device memory. What a kernel did not write must not look right.
inline std::vector<std::byte> device_plan(const Planner& planner, WorkerStarts starts = WorkerStarts::kItems) {
  std::vector<std::byte> plan(max_device_plan_bytes(planner, true, starts), std::byte{0xa5});
  const std::vector<std::byte> bytes = packed(planner, starts);
  std::copy(bytes.begin(), bytes.end(), plan.begin());
  return plan;
}

struct Counts {
  int plans = 0, shared = 0, divided = 0, divided_shared = 0, rounds = 0, whole = 0;
};

template <typename T, std::size_t N>
T pick(std::mt19937_64& random, const T (&choices)[N]) {
  return choices[random() % N];
}

// reschedule(plan, kv_lens, planner) runs the kernel on the bytes of a plan, of the most that plans may take.
template <typename Reschedule>
void check(PagedBatch batch, const PlannerOptions& options, int steps, int most_growth, std::mt19937_64& random,
           Counts& counts, const Reschedule& reschedule, WorkerStarts starts = WorkerStarts::kItems) {
  Planner planner = Planner::create(options).value();
  const Status planned = planner.plan(batch.view());
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  ASSERT_NE(planner.growth().arrays, nullptr);
  std::vector<std::byte> device = device_plan(planner, starts);
  for (int step = 0; step < steps; ++step) {
    for (std::int32_t& length : batch.kv_lens) {
      length += static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most_growth + 1));
    }
    const Status grown = planner.grow(batch.kv_lens.data());
    ASSERT_TRUE(grown.ok()) << grown.to_string();
    reschedule(device, batch.kv_lens, planner);
    const std::vector<std::byte> host = packed(planner, starts);
    const auto expected = sections(host.data());
    const auto got = sections(device.data());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(got[i] == expected[i], true) << "section " << i;
    const abi::PlanView view = planner.view();
    bool shared = false;
    for (std::uint32_t b = 0; b < view.header->num_block_rows; ++b) shared |= view.block_rows[b].num_requests > 1;
    counts.plans += 1;
    counts.shared += shared;
    counts.divided += planner.stats().split_rows > 0;
    counts.divided_shared += shared && planner.stats().split_rows > 0;
    counts.rounds += planner.growth().span_rounds > 1;
    counts.whole += planner.growth().num_spans > 0;
  }
}

inline PlannerOptions random_options(const PagedBatch& batch, std::int32_t growth, std::mt19937_64& random) {
  PlannerOptions o;
  o.num_kv_heads = pick(random, {1, 2, 3, 8});
  o.num_qo_heads = o.num_kv_heads * pick(random, {1, 3, 4, 5, 7, 16});
  o.head_dim = pick(random, {64, 128});
  o.page_tokens = batch.page_tokens;
  o.num_workers = pick(random, {1, 2, 7, 40, 132});
  o.shared_rounds = pick(random, {1, 3, 4});
  o.tile_rows = pick(random, {16, 32, 64, 128});
  o.shared_tile_rows = std::min(o.tile_rows, pick(random, {0, 16, 64}));
  o.shared_part_bytes = pick(random, {0, 1 << 14});
  o.block_tokens = pick(random, {16, 32, 64});
  o.share_prefixes = random() % 5 != 0;
  o.cost_item_bytes = pick(random, {1, 64, 4096, 16384});
  o.cost_balance_rows = pick(random, {8, 64});
  o.cost_divide_bytes = pick(random, {0, 0, 1 << 12, 1 << 18});
  o.limits = batch.limits(growth);
  return o;
}

// Masks, heads, tiles, workers and forests of all kinds.
template <typename Reschedule>
void check_random_batches(std::uint64_t num_seeds, const Reschedule& reschedule) {
  Counts counts;
  for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    RandomForest shape;
    shape.page_tokens = pick(random, {1, 4, 16, 32});
    shape.max_tokens = pick(random, {0, 40, 300, 2000});
    shape.max_requests = pick(random, {1, 4, 20, 40});
    shape.max_q_len = pick(random, {1, 5, 60});
    shape.growth = 120;
    PagedBatch batch = random_forest(shape, seed);
    PlannerOptions options = random_options(batch, shape.growth, random);
    switch (random() % 4) {
      case 0: batch.mask = abi::MaskKind::kNone; break;
      case 1:
        set_window(batch, static_cast<std::int32_t>(random() % 500));
        options.share_prefixes = false;
        break;
      default: break;
    }
    // Warps take requests apart.
    const bool warps = seed % 4 == 0;
    if (warps) options.share_prefixes = false;
    const WorkerStarts starts = warps ? WorkerStarts::kWarps : WorkerStarts::kItems;
    check(batch, options, 3, pick(random, {0, 1, 3, 40}), random, counts, reschedule, starts);
    if (testing::Test::HasFatalFailure()) return;
  }
  // The generator must reach what it is for.
  const int plans = counts.plans;
  EXPECT_GT(counts.shared, plans / 9);
  EXPECT_GT(counts.divided, plans / 5);
  EXPECT_GT(counts.divided_shared, plans / 25);
  EXPECT_GT(counts.rounds, plans / 25);
  EXPECT_GT(counts.whole, plans / 25);
}

// Requests of one token, by the hundred.
template <typename Reschedule>
void check_decode_at_scale(const Reschedule& reschedule) {
  Counts counts;
  std::mt19937_64 random(1);
  for (const char* kind : {"constant", "zipf", "one_long"}) {
    for (const int requests : {1, 3, 64, 256}) {
      const std::vector<std::int32_t> lengths = named_lengths(kind, requests, 4096, 3).value();
      const PagedBatch batch = flat_batch(constant_lengths(requests, 1), lengths, 16, PageOrder::kSequential, 0, 64);
      PlannerOptions options;
      options.num_workers = 132;
      options.cost_item_bytes = 16 << 10;
      options.cost_balance_rows = 64;
      options.limits = batch.limits(64);
      check(batch, options, 6, 8, random, counts, reschedule);
      options.num_workers = 1024;
      check(batch, options, 3, 8, random, counts, reschedule, WorkerStarts::kWarps);
    }
  }
  const PagedBatch tree = tree_batch(PrefixTree{{4, 16, 256}, {1024, 1024, 2048}}, 16, 1, PageOrder::kRandom, 2, 64);
  PlannerOptions options;
  options.num_workers = 132;
  options.limits = tree.limits(64);
  for (const int rounds : {1, 4}) {
    options.shared_rounds = rounds;
    check(tree, options, 10, 3, random, counts, reschedule);
  }
  EXPECT_EQ(counts.divided_shared, 20);
  EXPECT_EQ(counts.rounds, 10);
}

}  // namespace fovea::reschedule_case
