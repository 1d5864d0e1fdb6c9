// What plans promise beyond being right: even spans, few splits, cheap growth that stays good, no allocation, the same
// structure for a request whoever shares its batch, capacities that hold for PAT's trees.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <tuple>
#include <vector>

#include "core/plan/explain.h"
#include "core/plan/planner.h"
#include "core/plan/timeline.h"
#include "core/plan/verify.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace {
std::atomic<std::int64_t> g_allocations{0};
}  // namespace

// Counts every allocation of this test binary (but those of over-aligned types, which plan() and grow() have none of).
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(size != 0 ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* block = ::operator new(size, std::nothrow)) return block;
  throw std::bad_alloc();
}
// Never inlined: g++ would see free() where it sees new, and warn.
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace fovea {
namespace {

PlannerOptions gpu_like(const PagedBatch& batch, std::int32_t growth = 0) {
  PlannerOptions options;
  options.page_tokens = batch.page_tokens;
  options.num_workers = 132;
  options.limits = batch.limits(growth);
  return options;
}

double over_even(const Planner& planner) {
  const PlanStats stats = planner.stats();
  return static_cast<double>(stats.max_worker_cost) * planner.options().num_workers /
         static_cast<double>(stats.total_cost);
}

// Queues of the first round hold shared runs and all of them; the others the requests' own, in falling shares.
TEST(PlanQuality, SharedRunsComeFirst) {
  const PagedBatch batch = tree_batch(PrefixTree{{1, 16, 256}, {256, 128, 64}}, 32, 1, PageOrder::kRandom, 1);
  PlannerOptions options = gpu_like(batch);
  options.shared_rounds = 4;
  Planner planner = Planner::create(options).value();
  ASSERT_TRUE(planner.plan(batch.view()).ok());
  const abi::PlanView view = planner.view();
  EXPECT_NE(view.header->flags & abi::kPlanShares, 0u);
  ASSERT_EQ(view.launches[0].num_workers, 4u * 132);
  std::uint32_t round_pairs[4] = {};
  for (std::uint32_t w = 0; w < view.launches[0].num_workers; ++w) {
    for (std::uint32_t i = view.queue_begin[w]; i < view.queue_begin[w + 1]; ++i) {
      const abi::WorkItem& item = view.items[abi::queue_item(view.queue[i])];
      EXPECT_EQ(view.block_rows[item.block_row].num_requests > 1, w < 132) << "queue " << w;
      round_pairs[w / 132] += view.queue_head_end(i) - abi::queue_head(view.queue[i]);
    }
  }
  EXPECT_NEAR(round_pairs[1], 1024, 132);  // 256 requests under 8 heads: a half, a quarter, a quarter
  EXPECT_NEAR(round_pairs[2], 512, 132);
  EXPECT_NEAR(round_pairs[3], 512, 132);
}

// 128 pairs of a tile and a head on 132 workers: dividing them would save 3 % and cost a merge.
TEST(PlanQuality, PairsStayWholeWhereDividingCostsMoreThanItSaves) {
  for (const int requests : {16, 17, 64}) {
    const PagedBatch batch =
        flat_batch(constant_lengths(requests, 1), constant_lengths(requests, 1024), 16, PageOrder::kRandom, 1);
    PlannerOptions options;
    options.num_workers = 132;
    options.cost_balance_rows = 100;
    options.limits = batch.limits();
    Planner divided = Planner::create(options).value();
    options.cost_divide_bytes = 128 << 10;
    Planner whole = Planner::create(options).value();
    ASSERT_TRUE(divided.plan(batch.view()).ok() && whole.plan(batch.view()).ok());
    EXPECT_GT(divided.stats().split_rows, 0u) << requests;
    // 136 pairs: two for some workers and one for most would take nearly twice as long.
    EXPECT_EQ(whole.stats().split_rows == 0, requests != 17) << requests;
    EXPECT_LE(whole.stats().max_worker_cost, divided.stats().max_worker_cost + (128 << 10)) << requests;
    EXPECT_TRUE(verify_schedule(whole.view(), whole.max_partial_rows()).ok());
  }
}

// The even share here is 15,900 tokens a worker; a cut moves by at most half a block of 64.
TEST(PlanQuality, MakespanIsWithinTwoPercent) {
  for (const char* kind : {"constant", "uniform", "zipf", "one_long"}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto lengths = named_lengths(kind, 64, 4096, seed);
      ASSERT_TRUE(lengths.ok());
      const PagedBatch batch = flat_batch(constant_lengths(64, 1), *lengths, 16);
      auto planner = Planner::create(gpu_like(batch));
      ASSERT_TRUE(planner.ok() && planner->plan(batch.view()).ok());
      EXPECT_LE(over_even(*planner), 1.02) << kind << " seed " << seed;
      EXPECT_LE(planner->stats().split_rows, 131u);
    }
  }
}

TEST(PlanQuality, AThousandGrowthsStayWithinSixPercentOfAFreshPlan) {
  for (const char* kind : {"constant", "zipf", "one_long"}) {
    for (const bool shared : {false, true}) {
      auto lengths = named_lengths(kind, 64, 1024, 3);
      ASSERT_TRUE(lengths.ok());
      const PagedBatch batch = shared ? tree_batch({{2, 8, 64}, {512, 512, 400}}, 16, 1, PageOrder::kRandom, 5, 1000)
                                      : flat_batch(constant_lengths(64, 1), *lengths, 16, PageOrder::kRandom, 5, 1000);
      auto planner = Planner::create(gpu_like(batch, 1000));
      ASSERT_TRUE(planner.ok() && planner->plan(batch.view()).ok());
      std::vector<std::int32_t> grown = batch.kv_lens;
      for (int step = 0; step < 1000; ++step) {
        for (std::int32_t& length : grown) ++length;
        ASSERT_TRUE(planner->grow(grown.data()).ok());
      }
      const double cost = static_cast<double>(planner->stats().max_worker_cost);
      AttentionBatch now = batch.view();
      now.kv_lens = grown.data();
      ASSERT_TRUE(verify_schedule(planner->view(), planner->max_partial_rows()).ok());
      ASSERT_TRUE(verify_packing(planner->view(), now, 16).ok());
      ASSERT_TRUE(planner->plan(now).ok());
      EXPECT_LE(cost, 1.06 * static_cast<double>(planner->stats().max_worker_cost)) << kind << " shared " << shared;
    }
  }
}

TEST(PlanQuality, NothingIsAllocatedAfterCreate) {
  const PagedBatch flat = flat_batch(constant_lengths(64, 1), zipf_lengths(64, 65536, 1.2, 1), 16);
  const PagedBatch tree = tree_batch({{2, 8, 64}, {512, 512, 400}}, 16, 1, PageOrder::kRandom, 5);
  PlannerOptions options = gpu_like(flat, 16);
  options.limits.max_pages_per_request = std::max(flat.stride, tree.stride) + 1;
  for (const bool invariant : {false, true}) {
    options.batch_invariant = invariant;
    auto planner = Planner::create(options);
    ASSERT_TRUE(planner.ok()) << planner.status().to_string();
    std::vector<std::int32_t> lengths = tree.kv_lens;
    const std::int64_t before = g_allocations;
    bool ok = planner->plan(flat.view()).ok() && planner->plan(tree.view()).ok();
    ok = ok && planner->grow(lengths.data()).ok() && planner->stats().kv_bytes != 0;
    EXPECT_EQ(g_allocations - before, 0);
    EXPECT_TRUE(ok);
  }
}

// (positions covered, in merge order) of one row under one head.
using Structure = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::vector<Structure> structures(const abi::PlanView& v, std::uint32_t head) {
  const abi::PlanHeader& h = *v.header;
  std::vector<std::vector<std::tuple<std::uint32_t, std::int64_t, std::int64_t>>> parts(h.num_rows);
  for (std::uint32_t q = 0; q < h.num_queue_entries; ++q) {
    if (head < abi::queue_head(v.queue[q]) || head >= v.queue_head_end(q)) continue;
    const abi::WorkItem& item = v.items[abi::queue_item(v.queue[q])];
    const abi::BlockRow& b = v.block_rows[item.block_row];
    for (std::uint32_t i = 0; i < item.row_count; ++i) {
      const std::uint32_t partial =
          item.partial_slot == abi::kNone ? abi::kNone : abi::partial_row(item, b, head, h.group) + i * h.group;
      parts[v.row_indices[item.row_begin + i]].emplace_back(partial, b.position_base + std::int64_t{item.kv_begin},
                                                            b.position_base + std::int64_t{item.kv_end});
    }
  }
  std::vector<Structure> out(h.num_rows);
  for (std::uint32_t row = 0; row < h.num_rows; ++row) {
    if (parts[row].size() == 1) out[row].emplace_back(std::get<1>(parts[row][0]), std::get<2>(parts[row][0]));
  }
  for (std::uint32_t m = 0; m < h.num_merges; ++m) {
    const abi::MergeEntry& merge = v.merges[m];
    if (merge.head != head) continue;
    out[merge.row].clear();
    for (std::uint32_t i = 0; i < merge.num_parts; ++i) {
      for (const auto& [partial, begin, end] : parts[merge.row]) {
        if (partial == v.merge_parts[merge.parts_begin + i]) out[merge.row].emplace_back(begin, end);
      }
    }
  }
  return out;
}

TEST(PlanQuality, BatchInvariantStructureDependsOnTheRequestAlone) {
  std::uint32_t shared_nodes = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomForest shape;
    shape.max_tokens = 900;
    shape.max_q_len = 50;
    PagedBatch batch = random_forest(shape, seed);
    if (seed % 3 == 1) set_window(batch, 200 + static_cast<std::int32_t>(seed));
    if (seed % 3 == 2) set_random_bits(batch, 20, seed);
    PlannerOptions options = gpu_like(batch);
    options.batch_invariant = true;
    options.invariant_chunk = 128;
    options.limits.max_shared_rows = 10 * options.limits.max_rows;
    auto together = Planner::create(options);
    ASSERT_TRUE(together.ok() && together->plan(batch.view()).ok());
    const abi::PlanView view = together->view();
    for (std::uint32_t b = 0; b < view.header->num_block_rows; ++b) shared_nodes += view.block_rows[b].num_requests > 1;
    const std::vector<Structure> all = structures(view, 3);
    std::size_t row = 0;
    for (std::int32_t i = 0; i < batch.num_requests(); ++i) {
      AttentionBatch one = batch.view();
      one.num_requests = 1;
      one.q_lens += i;
      one.kv_lens += i;
      one.page_table += static_cast<std::size_t>(i) * static_cast<std::size_t>(batch.stride);
      if (one.mask == abi::MaskKind::kBits) {
        one.mask_offsets += i;
        one.mask_strides += i;
        one.mask_tails += i;
      }
      PlannerOptions other = options;
      other.num_workers = 3;
      auto alone = Planner::create(other);
      ASSERT_TRUE(alone.ok() && alone->plan(one).ok());
      for (const Structure& expected : structures(alone->view(), 3)) {
        ASSERT_EQ(all[row], expected) << "seed " << seed << " request " << i << " row " << row;
        ++row;
      }
    }
  }
  EXPECT_GT(shared_nodes, 50u);
}

// Tiles of the kernel for shared runs: 64 rows where the runs are short for so many workers, as all of PAT's grid was
// measured; 128 where they are long, so that 64 requests under a document of 16k read it twice and not four times.
TEST(PlanQuality, LongSharedRunsHaveTallTiles) {
  const auto planned = [](const PagedBatch& batch, std::int32_t heads, std::int32_t kv_heads, bool low_tiles) {
    PlannerOptions options = gpu_like(batch);
    options.num_qo_heads = heads;
    options.num_kv_heads = kv_heads;
    options.shared_rounds = 4;
    options.shared_tile_rows = low_tiles ? 64 : 0;
    options.shared_part_bytes = 256 << 10;
    options.shared_balance_rows = 64;
    Planner planner = Planner::create(options).value();
    EXPECT_TRUE(planner.plan(batch.view()).ok());
    EXPECT_TRUE(verify_schedule(planner.view(), planner.max_partial_rows()).ok());
    return planner;
  };
  const auto highest = [](const Planner& planner) {
    const auto& rows = planner.view().header->tile_rows;
    return *std::max_element(std::begin(rows), std::end(rows));
  };
  constexpr std::uint64_t kToken = 8 * 512;  // bytes of all heads
  for (const auto& [requests, tokens] : {std::pair{64, 16384}, {48, 16384}, {32, 32768}}) {
    SCOPED_TRACE(requests);
    const PagedBatch batch = tree_batch({{1, requests}, {tokens, 384}}, 16, 1, PageOrder::kRandom, 1);
    const Planner planner = planned(batch, 32, 8, true);
    EXPECT_EQ(highest(planner), 128u);
    const int tiles = (4 * requests + 127) / 128;
    EXPECT_EQ(planner.stats().kv_bytes, static_cast<std::uint64_t>(tiles * tokens + requests * 384) * kToken);
  }
  // 16 requests are 64 rows, which no tall tile reads less often; 3k are too short.
  for (const auto& [requests, tokens] : {std::pair{16, 65536}, {64, 3072}}) {
    const PagedBatch batch = tree_batch({{1, requests}, {tokens, 384}}, 16, 1, PageOrder::kRandom, 1);
    EXPECT_EQ(highest(planned(batch, 32, 8, true)), 64u) << requests;
  }
  // As many pairs of a tall tile and a head as take turns: 100 of 132 workers.
  int low = 0;
  for (const std::string_view text : pat_trees()) {
    const PagedBatch batch = tree_batch(*parse_prefix_tree(text), 32, 1, PageOrder::kSequential, 1);
    for (const auto& [heads, kv_heads] : {std::pair{32, 32}, {16, 8}, {32, 8}, {64, 8}}) {
      const Planner tall = planned(batch, heads, kv_heads, false);
      if (!(tall.view().header->flags & abi::kPlanShares)) continue;
      std::uint64_t pairs = 0;
      const abi::PlanView view = tall.view();
      for (std::uint32_t b = 0; b < view.header->num_block_rows; ++b) {
        const abi::BlockRow& row = view.block_rows[b];
        const std::uint32_t most = 128 / view.header->group;
        if (row.num_requests > 1)
          pairs += std::uint64_t{(row.row_count + most - 1) / most} * (row.head_end - row.head_begin);
      }
      const bool few = pairs < 100;
      low += few ? 1 : 0;
      EXPECT_EQ(highest(planned(batch, heads, kv_heads, true)), few ? 64u : 128u)
          << text << " " << heads << "x" << kv_heads;
    }
  }
  EXPECT_GT(low, 10);
}

TEST(PlanQuality, PatTreesFitAndSave) {
  for (const std::string_view text : pat_trees()) {
    const auto tree = parse_prefix_tree(text);
    ASSERT_TRUE(tree.ok());
    const PagedBatch batch = tree_batch(*tree, 32, 1, PageOrder::kSequential, 1);
    auto planner = Planner::create(gpu_like(batch));
    ASSERT_TRUE(planner.ok()) << planner.status().to_string();
    ASSERT_TRUE(planner->plan(batch.view()).ok());
    const Status schedule = verify_schedule(planner->view(), planner->max_partial_rows());
    ASSERT_TRUE(schedule.ok()) << text << ": " << schedule.to_string();
    const PlanStats stats = planner->stats();
    EXPECT_EQ(stats.kv_bytes_unshared, static_cast<std::uint64_t>(batch.num_tokens()) * 8 * 512) << text;
    if (tree->nodes.size() == 1) {
      EXPECT_EQ(stats.kv_bytes, stats.kv_bytes_unshared);
    } else {
      EXPECT_LT(stats.kv_bytes + stats.partial_bytes, stats.kv_bytes_unshared) << text;
    }
  }
}

TEST(PlanQuality, ASmallWorkspaceStillHoldsADeepForest) {
  const auto tree = parse_prefix_tree("1,8,16,32,64,128,1024_256,128,64,32,32,32,32");
  ASSERT_TRUE(tree.ok());
  const PagedBatch batch = tree_batch(*tree, 16, 1, PageOrder::kSequential, 1);
  std::uint64_t read = ~std::uint64_t{0};
  for (const std::int32_t shared_rows : {1, 1024, 2048, 5000, 20000}) {
    PlannerOptions options = gpu_like(batch);
    options.limits.max_shared_rows = shared_rows;
    auto planner = Planner::create(options);
    ASSERT_TRUE(planner.ok() && planner->plan(batch.view()).ok());
    ASSERT_TRUE(verify_schedule(planner->view(), planner->max_partial_rows()).ok());
    EXPECT_LE(planner->stats().kv_bytes, read);
    read = planner->stats().kv_bytes;
  }
}

TEST(PlanQuality, ExplainsAndDraws) {
  const PagedBatch batch = tree_batch({{1, 4, 16}, {512, 256, 100}}, 16, 1, PageOrder::kRandom, 2);
  auto planner = Planner::create(gpu_like(batch));
  ASSERT_TRUE(planner.ok() && planner->plan(batch.view()).ok());
  const std::string words = explain_plan(*planner);
  EXPECT_NE(words.find("if nothing were shared"), std::string::npos);
  EXPECT_NE(explain_steps(*planner, 4).find("... "), std::string::npos);
  const std::string svg = draw_plan(*planner, "a < b & c");
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  std::size_t boxes = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++boxes;
  EXPECT_EQ(boxes, plan_timeline(*planner).size());
}

}  // namespace
}  // namespace fovea
