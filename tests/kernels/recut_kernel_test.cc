// The re-cut of device plans, its own source run on the host with threads in random order, against the host's grow()
// and pack_device_plan(), byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "core/plan/device_plan.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

// The kernel comes after what it runs on.
// clang-format off
#define __forceinline__ inline
#include "kernels/any/recut.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

// One step at a time, its threads in random order: a result that depends on the order is a race.
struct HostCta {
  std::mt19937_64& random;
  std::vector<std::uint32_t>& order;
  std::uint32_t threads() const { return static_cast<std::uint32_t>(order.size()); }
  template <typename Step>
  void each_thread(const Step& step) const {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::uint32_t thread : order) step(thread);
  }
};

std::vector<std::byte> packed(const Planner& planner) {
  std::vector<std::byte> buffer(max_device_plan_bytes(planner, true));
  buffer.resize(pack_device_plan(planner.view(), buffer, planner.growth()).value());
  return buffer;
}

// Bytes of the sections themselves: between them anything may stand.
std::vector<std::vector<std::byte>> sections(const std::byte* plan) {
  abi::DevicePlanHeader h;
  std::memcpy(&h, plan, sizeof h);
  abi::GrowthHeader g;
  std::memcpy(&g, plan + h.growth, sizeof g);
  const auto bytes = [&](std::size_t begin, std::size_t count) {
    return std::vector<std::byte>(plan + begin, plan + begin + count);
  };
  return {bytes(0, sizeof h),
          bytes(abi::kWorkerStartOffset, h.num_workers * sizeof(abi::WorkerStart)),
          bytes(h.block_rows, h.counts.num_block_rows * sizeof(abi::BlockRow)),
          bytes(h.row_indices, g.num_row_indices * 4),
          bytes(h.q_pos, g.num_row_indices * 4),
          bytes(h.growth, abi::growth_bytes(g.num_tiles, h.counts.num_rows, g.num_covers)),
          bytes(h.items, h.counts.num_items * sizeof(abi::WorkItem)),
          bytes(h.queue, h.counts.num_queue_entries * 4),
          bytes(h.merges, h.counts.num_merges * sizeof(abi::MergeEntry)),
          bytes(h.merge_parts, h.counts.num_parts * 4),
          bytes(h.merge_of_partial, h.counts.num_partial_rows / h.counts.group * 4)};
}

// A plan in "device memory" and the kernel's argument.
struct DevicePlan {
  explicit DevicePlan(const Planner& planner)
      : plan(max_device_plan_bytes(planner, true)), scratch(max_recut_scratch_bytes(planner)) {
    // What a kernel did not write must not look right.
    std::fill(plan.begin(), plan.end(), std::byte{0xa5});
    std::fill(scratch.begin(), scratch.end(), std::uint8_t{0x5a});
    const std::vector<std::byte> bytes = packed(planner);
    std::copy(bytes.begin(), bytes.end(), plan.begin());
  }
  void recut(const std::vector<std::int32_t>& kv_lens, std::mt19937_64& random) {
    std::vector<std::uint32_t> order(abi::kRecutThreads);
    std::iota(order.begin(), order.end(), 0u);
    abi::RecutArgs args{};
    args.plan = reinterpret_cast<std::uint8_t*>(plan.data());
    args.kv_lens = kv_lens.data();
    args.scratch = scratch.data();
    const HostCta cta{random, order};
    Recut<HostCta>(cta, args, nullptr).run();
  }
  const abi::DevicePlanHeader& header() const { return *reinterpret_cast<const abi::DevicePlanHeader*>(plan.data()); }

  std::vector<std::byte> plan;
  std::vector<std::uint8_t> scratch;
};

struct Counts {
  int plans = 0, shared = 0, divided = 0, divided_shared = 0, rounds = 0, whole = 0;
};

template <typename T, std::size_t N>
T pick(std::mt19937_64& random, const T (&choices)[N]) {
  return choices[random() % N];
}

void check(PagedBatch batch, const PlannerOptions& options, int steps, int most_growth, std::mt19937_64& random,
           Counts& counts) {
  Planner planner = Planner::create(options).value();
  const Status planned = planner.plan(batch.view());
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  ASSERT_NE(planner.growth().arrays, nullptr);
  DevicePlan device(planner);
  for (int step = 0; step < steps; ++step) {
    for (std::int32_t& length : batch.kv_lens) {
      length += static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most_growth + 1));
    }
    const Status grown = planner.grow(batch.kv_lens.data());
    ASSERT_TRUE(grown.ok()) << grown.to_string();
    device.recut(batch.kv_lens, random);
    const std::vector<std::byte> host = packed(planner);
    const auto expected = sections(host.data());
    const auto got = sections(device.plan.data());
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

PlannerOptions random_options(const PagedBatch& batch, std::int32_t growth, std::mt19937_64& random) {
  PlannerOptions o;
  o.num_kv_heads = pick(random, {1, 2, 3, 8});
  o.num_qo_heads = o.num_kv_heads * pick(random, {1, 3, 4, 5, 7, 16});
  o.head_dim = pick(random, {64, 128});
  o.page_tokens = batch.page_tokens;
  o.num_workers = pick(random, {1, 2, 7, 40, 132});
  o.span_rounds = pick(random, {1, 1, 4});
  o.min_span_bytes = pick(random, {1 << 10, 1 << 17});
  o.tile_rows = pick(random, {16, 32, 64, 128});
  o.block_tokens = pick(random, {16, 32, 64});
  o.share_prefixes = random() % 5 != 0;
  o.cost_item_bytes = pick(random, {1, 64, 4096, 16384});
  o.cost_balance_rows = pick(random, {8, 64});
  o.cost_divide_bytes = pick(random, {0, 0, 1 << 12, 1 << 18});
  o.limits = batch.limits(growth);
  return o;
}

TEST(RecutKernelTest, WritesWhatTheHostWouldForRandomBatches) {
  Counts counts;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
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
    check(batch, options, 3, pick(random, {0, 1, 3, 40}), random, counts);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(counts.shared, 500);
  EXPECT_GT(counts.divided, 1000);
  EXPECT_GT(counts.divided_shared, 200);
  EXPECT_GT(counts.rounds, 200);
  EXPECT_GT(counts.whole, 200);
}

TEST(RecutKernelTest, WritesWhatTheHostWouldForDecodeAtScale) {
  Counts counts;
  std::mt19937_64 random(1);
  for (const char* kind : {"constant", "zipf", "one_long"}) {
    for (const int rounds : {1, 4}) {
      for (const int requests : {1, 3, 64, 256}) {
        const std::vector<std::int32_t> lengths = named_lengths(kind, requests, 4096, 3).value();
        const PagedBatch batch = flat_batch(constant_lengths(requests, 1), lengths, 16, PageOrder::kSequential, 0, 64);
        PlannerOptions options;
        options.num_workers = 132;
        options.span_rounds = rounds;
        options.cost_item_bytes = 16 << 10;
        options.cost_balance_rows = 64;
        options.limits = batch.limits(64);
        check(batch, options, 6, 8, random, counts);
      }
    }
  }
  const PagedBatch tree = tree_batch(PrefixTree{{4, 16, 256}, {1024, 1024, 2048}}, 16, 1, PageOrder::kRandom, 2, 64);
  PlannerOptions options;
  options.num_workers = 132;
  options.limits = tree.limits(64);
  check(tree, options, 10, 3, random, counts);
  EXPECT_EQ(counts.divided_shared, 10);
}

TEST(RecutKernelTest, LeavesPlansThatItCannotCutAsTheyWere) {
  std::mt19937_64 random(1);
  PagedBatch batch = flat_batch(constant_lengths(5, 1), constant_lengths(5, 100), 16, PageOrder::kRandom, 1, 20);
  PlannerOptions options;
  options.num_workers = 7;
  options.limits = batch.limits(20);
  Planner planner = Planner::create(options).value();
  ASSERT_TRUE(planner.plan(batch.view()).ok());
  const std::int64_t most = planner.growth().max_tokens;
  for (const std::int64_t wrong : {std::int64_t{99}, most + 1}) {
    DevicePlan device(planner);
    const auto before = sections(device.plan.data());
    std::vector<std::int32_t> kv_lens(5, 110);
    kv_lens[3] = static_cast<std::int32_t>(wrong);
    device.recut(kv_lens, random);
    EXPECT_EQ(device.header().recut_error, 4u);
    auto after = sections(device.plan.data());
    after[0] = before[0];
    EXPECT_TRUE(after == before);
    device.recut(std::vector<std::int32_t>(5, 110), random);
    EXPECT_EQ(device.header().recut_error, 0u);
    EXPECT_EQ(device.header().counts.generation, planner.view().header->generation + 1);
  }
  // Packing that depends on lengths, and chunks, are the host's.
  options.batch_invariant = true;
  Planner invariant = Planner::create(options).value();
  ASSERT_TRUE(invariant.plan(batch.view()).ok());
  EXPECT_EQ(invariant.growth().arrays, nullptr);
  DevicePlan device(invariant);
  device.recut(std::vector<std::int32_t>(5, 110), random);
  EXPECT_EQ(device.header().recut_error, abi::kNone);
  set_random_bits(batch, 10, 1);
  ASSERT_TRUE(planner.plan(batch.view()).ok());
  EXPECT_EQ(planner.growth().arrays, nullptr);
}

}  // namespace
}  // namespace fovea::kernels
