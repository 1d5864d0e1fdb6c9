// Plans of random batches, checked by core/plan/verify: forests, lengths, masks, heads, page sizes, workers, limits.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "core/plan/planner.h"
#include "core/plan/verify.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea {
namespace {

struct Case {
  PagedBatch batch;
  PlannerOptions options;
};

template <typename T, std::size_t N>
T pick(PhiloxRng& rng, const T (&choices)[N]) {
  return choices[rng.next_below(N)];
}

Case random_case(std::uint64_t seed, bool invariant) {
  PhiloxRng rng(seed, 1);
  Case c;
  RandomForest shape;
  shape.page_tokens = pick(rng, {1, 3, 4, 16, 32});
  if (invariant) shape.page_tokens = pick(rng, {1, 4, 16});
  shape.max_tokens = pick(rng, {0, 40, 300, 900});
  shape.max_requests = pick(rng, {1, 4, 20, 40});
  shape.max_q_len = pick(rng, {1, 5, 60});
  shape.growth = 40;
  c.batch = random_forest(shape, seed);
  switch (rng.next_below(5)) {
    case 0: c.batch.mask = abi::MaskKind::kNone; break;
    case 1: set_window(c.batch, static_cast<std::int32_t>(rng.next_below(500))); break;
    case 2: set_random_bits(c.batch, pick(rng, {0, 1, 7, 40}), seed); break;
    default: break;
  }
  PlannerOptions& o = c.options;
  o.num_kv_heads = pick(rng, {1, 2, 3, 8});
  o.num_qo_heads = o.num_kv_heads * pick(rng, {1, 3, 4, 5, 7, 16});
  o.head_dim = pick(rng, {32, 64, 128});
  o.page_tokens = shape.page_tokens;
  o.num_workers = pick(rng, {1, 2, 7, 40, 132});
  o.shared_rounds = pick(rng, {1, 2, 4, 7});
  o.cost_divide_bytes = pick(rng, {0, 0, 1 << 12, 1 << 18});
  o.tile_rows = pick(rng, {16, 32, 64, 128});
  o.shared_tile_rows = std::min(o.tile_rows, pick(rng, {0, 16, 64}));
  o.shared_part_bytes = pick(rng, {0, 1 << 14});
  o.block_tokens = pick(rng, {16, 32, 64});
  o.share_prefixes = rng.next_below(5) != 0;
  o.batch_invariant = invariant;
  o.longest_first = rng.next_below(3) == 0;
  o.invariant_chunk = pick(rng, {64, 128, 512});
  o.cost_item_bytes = pick(rng, {1, 64, 4096});
  o.limits = c.batch.limits(shape.growth);
  // Tree masks need their pairs; sharing must cope with any limit.
  if (rng.next_below(3) == 0 && c.batch.mask != abi::MaskKind::kBits) {
    o.limits.max_shared_rows = pick(rng, {1, 10, 50});
  } else {
    o.limits.max_shared_rows = 8 * o.limits.max_rows + 1;
  }
  return c;
}

void expect_valid(const Planner& planner, const PagedBatch& batch, const AttentionBatch& lengths, std::uint64_t seed) {
  const Status schedule = verify_schedule(planner.view(), planner.max_partial_rows());
  ASSERT_TRUE(schedule.ok()) << "seed " << seed << ": " << schedule.to_string();
  const Status packing = verify_packing(planner.view(), lengths, batch.page_tokens);
  ASSERT_TRUE(packing.ok()) << "seed " << seed << ": " << packing.to_string();
  if (!planner.options().batch_invariant) {
    EXPECT_LE(planner.stats().split_rows, planner.view().launches[0].num_workers - 1);
  }
}

class PlanProperty : public ::testing::TestWithParam<bool> {};

TEST_P(PlanProperty, EveryVisiblePairIsCoveredOnce) {
  // The generator must reach what it is for.
  int shared = 0;
  int split = 0;
  int deep = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Case c = random_case(seed, GetParam());
    auto planner = Planner::create(c.options);
    ASSERT_TRUE(planner.ok()) << planner.status().to_string();
    const Status status = planner->plan(c.batch.view());
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
    expect_valid(*planner, c.batch, c.batch.view(), seed);
    if (HasFatalFailure()) return;
    const abi::PlanView view = planner->view();
    const PlanStats stats = planner->stats();
    shared += stats.kv_bytes < stats.kv_bytes_unshared;
    split += stats.split_rows > 0;
    for (std::uint32_t b = 0; b < view.header->num_block_rows; ++b) {
      if (view.block_rows[b].num_requests > 1 && view.block_rows[b].position_base > 0) {
        ++deep;
        break;
      }
    }
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(deep, 20);
  EXPECT_GT(split, GetParam() ? -1 : 300);
}

TEST_P(PlanProperty, GrownPlansAreValid) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Case c = random_case(seed, GetParam());
    if (c.batch.mask == abi::MaskKind::kBits && c.batch.mask_tails.empty()) continue;  // bits for the old length only
    auto planner = Planner::create(c.options);
    ASSERT_TRUE(planner.ok()) << planner.status().to_string();
    ASSERT_TRUE(planner->plan(c.batch.view()).ok());
    PhiloxRng rng(seed, 2);
    std::vector<std::int32_t> lengths = c.batch.kv_lens;
    for (int step = 0; step < 4; ++step) {
      for (std::int32_t& length : lengths) length += static_cast<std::int32_t>(rng.next_below(10));
      ASSERT_TRUE(planner->grow(lengths.data()).ok());
      AttentionBatch grown = c.batch.view();
      grown.kv_lens = lengths.data();
      expect_valid(*planner, c.batch, grown, seed);
      if (HasFatalFailure()) return;
    }
  }
}

std::vector<std::byte> bytes_of(const Planner& planner) {
  const abi::PlanView v = planner.view();
  const abi::PlanHeader& h = *v.header;
  std::vector<std::byte> bytes;
  const auto add = [&](const auto* data, std::size_t count) {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + count * sizeof(*data));
  };
  add(v.items, h.num_items);
  add(v.block_rows, h.num_block_rows);
  add(v.queue_begin, v.launches[0].num_workers + 1);
  add(v.queue, h.num_queue_entries + 1);
  add(v.row_indices, h.num_rows);
  add(v.q_pos, h.num_rows);
  add(v.merges, h.num_merges);
  add(v.merge_parts, h.num_parts);
  return bytes;
}

TEST_P(PlanProperty, SameInputSamePlanWhateverCameBefore) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = random_case(seed, GetParam());
    auto first = Planner::create(c.options);
    auto second = Planner::create(c.options);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(first->plan(c.batch.view()).ok());
    PagedBatch other = flat_batch({1}, {std::min(5, c.options.limits.max_pages_per_request * c.options.page_tokens)},
                                  c.options.page_tokens);
    ASSERT_TRUE(second->plan(other.view()).ok());
    ASSERT_TRUE(second->plan(c.batch.view()).ok());
    ASSERT_EQ(bytes_of(*first), bytes_of(*second)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PlanProperty, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "invariant" : "balanced"; });

}  // namespace
}  // namespace fovea
