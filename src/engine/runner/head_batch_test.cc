// Block rows of layers whose heads keep different tokens, taken apart again: every query sees each token that it should
// once, under every head, from the page that holds it; what requests share is read once.
#include "engine/runner/head_batch.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "engine/model/kv_grouping.h"

namespace fovea {
namespace {

constexpr std::int32_t kHeads = 4;
constexpr std::int32_t kPage = 16;
constexpr std::int32_t kStride = 160;
constexpr std::int32_t kRequests = 12;

struct Random {
  PhiloxRng rng;
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(n)));
  }
};

KvGrouping layout(std::int32_t prompt_window, std::int32_t window = 100) {
  ModelConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kHeads;
  config.head_dim = 64;
  config.layer_window = {0};
  const HeadProfile profile{"", 64, window, prompt_window, {{0, 1}, {0, 3}}};
  return make_kv_grouping(config, {0, config.num_kv_heads}, &profile);
}

PlannerOptions planner_options(bool invariant, bool share) {
  PlannerOptions options;
  options.num_qo_heads = 2 * kHeads;
  options.num_kv_heads = kHeads;
  options.head_dim = 64;
  options.num_workers = 3;
  options.batch_invariant = invariant;
  options.share_prefixes = share;
  options.limits = {kRequests, 256, kStride};
  return options;
}

// A draft tree of a few levels, by depth.
void grow(Random& random, DraftTree& tree) {
  const std::int32_t count = 2 + random.below(6);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t parent = std::max(random.below(i + 1) - 1, tree.empty() ? -1 : tree.back().parent);
    tree.push_back({.token = i, .parent = parent});
    tree.back().depth = parent < 0 ? 1 : tree[static_cast<std::size_t>(parent)].depth + 1;
  }
}

// Requests of a few families, each with a page run of its own at the front.
struct Batch {
  std::vector<Sequence> sequences{kRequests};
  Step step;
  std::vector<std::int32_t> positions;
  PageTables tables{2, kRequests, kStride};
  std::vector<std::int32_t> selecting;

  // brief: sequences not much longer than the sinks, which share nothing.
  explicit Batch(Random& random, bool decodes, bool trees = false, bool brief = false) {
    const std::int32_t count = 1 + random.below(kRequests);
    std::int32_t next_page = 1000;
    for (std::int32_t i = 0; i < count; ++i) {
      Sequence& sequence = sequences[static_cast<std::size_t>(i)];
      const std::int32_t family = random.below(3);
      const std::int32_t shared = brief ? 0 : (1 + random.below(4)) * 16 * (family + 1);  // pages
      if (trees && random.below(3) > 0) grow(random, sequence.draft);
      const auto drafts = static_cast<std::int32_t>(sequence.draft.size());
      const std::int32_t rows = drafts > 0 || decodes ? 1 + drafts : 1 + random.below(20);
      const std::int32_t end = std::min(kStride * kPage, shared * kPage + rows + random.below(brief ? 90 : 200));
      // The token before a draft may be the prompt's last.
      sequence.prompt_length = drafts > 0 ? end - rows + random.below(2) : end - random.below(rows + 1);
      step.items.push_back({&sequence, end - rows, rows, true, drafts});
      step.num_tokens += rows;
      for (std::int32_t p = end - rows; p < end - drafts; ++p) positions.push_back(p);
      for (const DraftNode& node : sequence.draft) positions.push_back(end - rows + node.depth);
      selecting.push_back(drafts == 0 && random.below(4) == 0 ? random.below(rows + 1) : 0);
      for (std::size_t g = 0; g < 2; ++g) {
        for (std::int32_t p = 0; p < kStride; ++p) {
          const bool common = p < std::min(shared, (end - rows) / kPage);
          tables.entries[tables.begin(g, static_cast<std::size_t>(i)) + static_cast<std::uint32_t>(p)] =
              common ? family * 200 + p + 1 : next_page++;
        }
      }
    }
  }
};

// Whether row j of the item sees its token of place k: tokens before it, or for a draft token those that it follows.
bool sees_own(const StepItem& item, std::int32_t j, std::int32_t k) {
  const std::int32_t known = item.count - item.drafts;
  while (j > k && j >= known) j = item.sequence->draft[static_cast<std::size_t>(j - known)].parent + known;
  return k <= j && (k < known || k == j);
}

// Tokens that a row sees under a head, and the pages it reads them from.
using Seen = std::map<std::int32_t, std::int32_t>;

void expect_seen(const KvGrouping& layout, const Batch& b, const BlockRowBatch& rows, bool selecting) {
  std::map<std::pair<std::uint32_t, std::int32_t>, Seen> seen;
  for (const abi::BlockRow& block : rows.block_rows) {
    EXPECT_EQ(block.pool, block.head_begin);  // one range a head here
    for (std::uint32_t r = block.row_begin; r < block.row_begin + block.row_count; ++r) {
      const std::int32_t position = rows.q_pos[r];
      EXPECT_EQ(position, b.positions[rows.row_indices[r]]);
      for (std::uint32_t t = block.first_token; t < block.num_tokens; ++t) {
        const std::int32_t at = block.position_base + static_cast<std::int32_t>(t);
        if (block.mask == abi::MaskKind::kBits) {
          const std::uint64_t bit = block.mask_offset + std::uint64_t{r - block.row_begin} * block.mask_stride + t;
          if ((rows.mask_bits[bit / 8] >> (bit % 8) & 1) == 0) continue;
        } else if (block.mask != abi::MaskKind::kNone && at > position) {
          continue;
        }
        if (block.mask == abi::MaskKind::kWindow && position - at > block.window_left) continue;
        for (std::int32_t head = block.head_begin; head < block.head_end; ++head) {
          const bool fresh =
              seen[{rows.row_indices[r], head}].emplace(at, rows.page_entries[block.list_begin + t / kPage]).second;
          EXPECT_TRUE(fresh) << "row " << r << " meets token " << at << " twice";
        }
      }
    }
  }
  std::uint32_t row = 0;
  for (std::size_t i = 0; i < b.step.items.size(); ++i) {
    const StepItem& item = b.step.items[i];
    for (std::int32_t j = 0; j < item.count; ++j, ++row) {
      const std::int32_t position = b.positions[row];
      for (std::int32_t head = 0; head < kHeads; ++head) {
        const std::size_t kv_group = layout.attention[0].ranges[static_cast<std::size_t>(head)].kv_group;
        const KvGroupSpec& spec = layout.groups[kv_group];
        const std::int32_t window = position < item.sequence->prompt_length ? spec.most_window() : spec.window_tokens;
        const bool left_out = selecting && window == 0 && j >= item.count - b.selecting[i];
        Seen expected;
        for (std::int32_t t = 0; t < item.begin + item.count && !left_out; ++t) {
          if (t >= item.begin && !sees_own(item, j, t - item.begin)) continue;
          const std::int32_t at =
              t < item.begin ? t : b.positions[row - static_cast<std::uint32_t>(j - (t - item.begin))];
          if (window > 0 && at >= spec.sink_tokens && position - at >= window) continue;
          expected[t] = b.tables.entries[b.tables.begin(kv_group, i) + static_cast<std::uint32_t>(t / kPage)];
        }
        ASSERT_TRUE((seen[{row, head}] == expected)) << "item " << i << ", position " << position << ", head " << head;
      }
    }
  }
}

TEST(HeadBatch, EveryQuerySeesItsTokensOnce) {
  Random random{PhiloxRng(11)};
  bool shared = false;
  for (int trial = 0; trial < 28; ++trial) {
    SCOPED_TRACE(trial);
    const bool invariant = trial % 3 == 1;
    const KvGrouping made = layout(trial % 2 == 0 ? 0 : 300);
    PlannerOptions options = planner_options(invariant, trial % 7 != 0);
    HeadBatch heads(made.attention[0], made.groups, {}, options);
    const bool trees = trial % 4 > 1;
    heads.raise_limits(options.limits, trees ? kRequests * 8 : 0);
    Planner planner = *Planner::create(options);
    const Batch batch(random, trial % 2 == 0, trees);
    for (const bool selecting : {false, true}) {
      const BlockRowBatch rows = heads.make(batch.step, batch.positions, batch.tables,
                                            selecting ? batch.selecting : std::vector<std::int32_t>());
      expect_seen(made, batch, rows, selecting);
      if (selecting) continue;
      const Status planned = planner.plan_block_rows(rows);
      ASSERT_TRUE(planned.ok()) << planned.message();
      EXPECT_EQ(planner.stats().kv_bytes_unshared, planner.stats().kv_bytes + rows.kv_bytes_saved);
      shared |= rows.kv_bytes_saved > 0;
      EXPECT_TRUE(trial % 7 != 0 || rows.kv_bytes_saved == 0);
    }
  }
  EXPECT_TRUE(shared);
}

// Windows may be shorter than a tree is deep, and trees may stand among the sinks.
TEST(HeadBatch, TreesSeeTheirWindowsAndSinks) {
  Random random{PhiloxRng(13)};
  for (int trial = 0; trial < 32; ++trial) {
    SCOPED_TRACE(trial);
    const std::int32_t window = 1 + trial % 8;
    const KvGrouping made = layout(trial % 2 == 0 ? 0 : 300, window);
    PlannerOptions options = planner_options(false, true);
    HeadBatch heads(made.attention[0], made.groups, {}, options);
    heads.raise_limits(options.limits, kRequests * 8);
    Planner planner = *Planner::create(options);
    const Batch batch(random, trial % 4 < 2, true, trial % 8 < 6);
    const BlockRowBatch rows = heads.make(batch.step, batch.positions, batch.tables);
    expect_seen(made, batch, rows, false);
    const Status planned = planner.plan_block_rows(rows);
    ASSERT_TRUE(planned.ok()) << planned.message();
  }
}

// Where others share as much as there is room for, trees that share nothing still have theirs.
TEST(HeadBatch, TreesFitBesideAllSharing) {
  ModelConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kHeads;
  config.head_dim = 64;
  config.layer_window = {0};
  const KvGrouping made = make_kv_grouping(config, {0, kHeads}, nullptr);
  PlannerOptions options = planner_options(false, true);
  options.limits.max_rows = 48;  // of which 96 states may be shared
  HeadBatch heads(made.attention[0], made.groups, {}, options);
  std::vector<Sequence> sequences(kRequests);
  PageTables tables(1, kRequests, kStride);
  Step step;
  std::vector<std::int32_t> positions;
  // Two trees of two draft tokens; ten prompts of 32 tokens together that share 60 pages, and five of them another 60.
  for (std::int32_t i = 0; i < kRequests; ++i) {
    Sequence& sequence = sequences[static_cast<std::size_t>(i)];
    if (i < 2) sequence.draft = {{.token = 1}, {.token = 2}};
    const std::int32_t rows = i == 2 || i == 7 ? 4 : 3;
    step.items.push_back({&sequence, 130 * kPage, rows, true, i < 2 ? 2 : 0});
    for (std::int32_t j = 0; j < rows; ++j) positions.push_back(130 * kPage + (i < 2 ? std::min(j, 1) : j));
    for (std::int32_t p = 0; p < kStride; ++p) {
      const std::int32_t shared = p < 60 ? 1 : p < 120 ? 2 + i / 7 : 0;
      tables.entries[tables.begin(0, static_cast<std::size_t>(i)) + static_cast<std::uint32_t>(p)] =
          i < 2 || shared == 0 ? (i + 10) * kStride + p : shared * kStride + p;
    }
  }
  heads.raise_limits(options.limits, 2 * 4);
  Planner planner = *Planner::create(options);
  const BlockRowBatch rows = heads.make(step, positions, tables);
  EXPECT_EQ(rows.block_rows.size(), std::size_t{kRequests} + 3 + 2);
  const Status planned = planner.plan_block_rows(rows);
  EXPECT_TRUE(planned.ok()) << planned.message();
}

// The bytes of sharing are those that plans of requests have for the same lists.
TEST(HeadBatch, SharesWhatAPlanOfRequestsShares) {
  Random random{PhiloxRng(12)};
  for (int trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(trial);
    const KvGrouping made = layout(0);
    PlannerOptions options = planner_options(trial % 2 == 1, true);
    const Batch batch(random, trial % 3 != 0);
    std::vector<std::int32_t> q_lens, kv_lens;
    for (const StepItem& item : batch.step.items) {
      q_lens.push_back(item.count);
      kv_lens.push_back(item.begin + item.count);
    }
    AttentionBatch requests;
    requests.num_requests = static_cast<std::int32_t>(q_lens.size());
    requests.q_lens = q_lens.data();
    requests.kv_lens = kv_lens.data();
    requests.page_table = batch.tables.entries.data();
    requests.page_table_stride = kStride;
    options.limits.max_shared_rows = 1024;
    Planner planner = *Planner::create(options);
    ASSERT_TRUE(planner.plan(requests).ok());
    const std::uint64_t all_heads = planner.stats().kv_bytes_unshared - planner.stats().kv_bytes;
    HeadBatch heads(made.attention[0], made.groups, {}, options);
    const BlockRowBatch rows = heads.make(batch.step, batch.positions, batch.tables);
    EXPECT_EQ(rows.kv_bytes_saved * 2, all_heads);  // two of four heads are full
  }
}

}  // namespace
}  // namespace fovea
