// One plan over several KV pools of different type, page size and heads: heads that see all, streaming heads with their
// middle pages given away, and rings whose pages stand in any order with positions of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/layout/head_rows.h"
#include "cpu/attention/attention_test_util.h"

namespace fovea::cpu {
namespace {

using testing::AttentionCase;
using testing::CaseSpec;
using testing::make_case;

constexpr int kGroup = 4;
constexpr int kHeads = 2;  // KV heads of each pool
constexpr int kHeadDim = 64;
constexpr std::int32_t kSinks = 64;
constexpr std::int32_t kWindow = 100;
constexpr std::int32_t kRingPages = 6;

CaseSpec spec_of(DType dtype, int page_tokens, std::uint64_t seed) {
  CaseSpec spec;
  spec.q_lens = {1, 1, 37, 5, 3, 200};
  spec.kv_lens = {700, 90, 400, 5, 66, 300};
  spec.kv_heads = kHeads;
  spec.group = kGroup;
  spec.head_dim = kHeadDim;
  spec.kv_dtype = dtype;
  spec.page_tokens = page_tokens;
  spec.heads_first = page_tokens == 16;
  spec.seed = seed;
  return spec;
}

// Replaces the random bits of a case by a rule.
template <typename Sees>
void set_mask(AttentionCase& c, Sees sees) {
  std::fill(c.mask_bits.begin(), c.mask_bits.end(), std::uint8_t{0});
  for (int r = 0; r < c.num_requests(); ++r) {
    for (int row = 0; row < c.spec.q_lens[r]; ++row) {
      const int q_pos = c.spec.kv_lens[r] - c.spec.q_lens[r] + row;
      for (int t = 0; t <= q_pos; ++t) {
        if (!sees(r, q_pos, t)) continue;
        const std::uint64_t bit = c.mask_offsets[r] + static_cast<std::uint64_t>(row) * c.mask_strides[r] + t;
        c.mask_bits[bit / 8] |= static_cast<std::uint8_t>(1u << (bit % 8));
      }
    }
  }
}

bool streaming_sees(int q_pos, int token) { return token < kSinks || q_pos - token < kWindow; }

// Three cases of the same lengths and queries, laid side by side as heads 0-1, 2-3 and 4-5 of one call.
class PoolsTest : public ::testing::Test {
 protected:
  PoolsTest() {
    CaseSpec streaming = spec_of(DType::kF32, 32, 2);
    CaseSpec ring = spec_of(DType::kF16, 16, 3);
    streaming.mask = ring.mask = abi::MaskKind::kBits;
    cases_.push_back(make_case(spec_of(DType::kBF16, 16, 1)));
    cases_.push_back(make_case(streaming));
    cases_.push_back(make_case(ring));
    set_mask(cases_[1], [](int, int q_pos, int token) { return streaming_sees(q_pos, token); });
    set_mask(cases_[2], [&](int request, int, int token) { return in_ring(request, token / 16); });
    for (std::size_t p = 0; p < cases_.size(); ++p) {
      pools_.push_back(abi::shift_heads(cases_[p].pool, static_cast<int>(p) * kHeads));
    }
  }

  bool in_ring(int request, int page) const {
    const int pages = (cases_[2].spec.kv_lens[request] + 15) / 16;
    return page * 16 < kSinks || page >= pages - kRingPages;
  }

  // A page of the pool that holds no token of anybody.
  static std::int32_t unused_page(const AttentionCase& c) {
    const std::set<std::int32_t> used(c.page_table.begin(), c.page_table.end());
    std::int32_t page = 0;
    while (used.contains(page)) ++page;
    return page;
  }

  void lay_out(bool invariant) {
    block_rows_.clear();
    entries_.clear();
    positions_.clear();
    q_pos_.clear();
    std::uint32_t row = 0;
    for (int r = 0; r < cases_[0].num_requests(); ++r) {
      const std::int32_t count = cases_[0].spec.q_lens[r];
      const std::int32_t end = cases_[0].spec.kv_lens[r];
      for (std::int32_t i = 0; i < count; ++i) q_pos_.push_back(end - count + i);
      for (std::int32_t p = 0; p < 2; ++p) {
        const HeadSegment segment{p * kHeads, (p + 1) * kHeads, p, p == 0 ? 0 : kWindow, p == 0 ? 0 : kSinks};
        add_head_rows(segment, {row, count, end, push_list(p, r)}, invariant, block_rows_);
      }
      push_ring(r, row, count);
      row += static_cast<std::uint32_t>(count);
    }
    row_indices_.resize(row);
    std::iota(row_indices_.begin(), row_indices_.end(), 0u);
  }

  std::uint32_t push_list(int p, int request) {
    const AttentionCase& c = cases_[p];
    const auto begin = static_cast<std::uint32_t>(entries_.size());
    const int first_seen = c.spec.kv_lens[request] - c.spec.q_lens[request] - kWindow + 1;
    for (int page = 0; page < c.page_table_stride; ++page) {
      const bool dropped =
          p == 1 && page * c.spec.page_tokens >= kSinks && (page + 1) * c.spec.page_tokens <= first_seen;
      entries_.push_back(dropped ? unused_page(c) : c.page_table[request * c.page_table_stride + page]);
    }
    positions_.resize(entries_.size(), -1);
    return begin;
  }

  // The newest page goes last, since it may be filled in part; those before it stand in any order.
  void push_ring(int request, std::uint32_t row, std::int32_t count) {
    const AttentionCase& c = cases_[2];
    const std::int32_t end = c.spec.kv_lens[request];
    std::vector<int> pages;
    for (int page = 0; page * 16 < end; ++page) {
      if (in_ring(request, page)) pages.push_back(page);
    }
    if (pages.size() > 2) std::reverse(pages.begin() + 1, pages.end() - 1);
    abi::BlockRow ring{};
    ring.row_begin = row;
    ring.row_count = static_cast<std::uint32_t>(count);
    ring.list_begin = ring.positions_begin = static_cast<std::uint32_t>(entries_.size());
    ring.num_tokens =
        static_cast<std::uint32_t>((pages.size() - 1) * 16) + static_cast<std::uint32_t>(end - pages.back() * 16);
    ring.length_slot = abi::kNone;
    ring.window_left = -1;
    ring.head_begin = 2 * kHeads;
    ring.head_end = 3 * kHeads;
    ring.pool = 2;
    ring.mask = abi::MaskKind::kCausal;
    ring.num_requests = 1;
    for (const int page : pages) {
      entries_.push_back(c.page_table[request * c.page_table_stride + page]);
      positions_.push_back(page * 16);
    }
    block_rows_.push_back(ring);
  }

  BlockRowBatch batch() const {
    BlockRowBatch batch;
    batch.num_rows = static_cast<std::int32_t>(row_indices_.size());
    batch.block_rows = block_rows_;
    batch.row_indices = row_indices_;
    batch.q_pos = q_pos_;
    batch.page_entries = entries_.data();
    batch.kv_positions = positions_.data();
    batch.pool_token_bytes = token_bytes_;
    return batch;
  }

  Planner make(bool invariant) const {
    PlannerOptions options;
    options.num_kv_heads = 3 * kHeads;
    options.num_qo_heads = options.num_kv_heads * kGroup;
    options.head_dim = kHeadDim;
    options.num_workers = 3;
    options.batch_invariant = invariant;
    options.limits.max_requests = 8;
    options.limits.max_rows = 256;
    options.limits.max_pages_per_request = 64;
    options.limits.max_shared_rows = 512;
    options.limits.max_block_rows = 64;
    options.limits.max_covered_rows = 4 * 256;
    Result<Planner> planner = Planner::create(options);
    EXPECT_TRUE(planner.ok()) << planner.status().to_string();
    return std::move(planner).value();
  }

  // Outputs by pool, in the shape of its case.
  std::vector<RunResult> run(const Planner& planner) {
    const std::int64_t rows = cases_[0].num_rows;
    const std::int64_t heads = 3 * kHeads * kGroup;
    const std::int64_t width = kHeads * kGroup * kHeadDim;
    std::vector<float> q(rows * heads * kHeadDim), out(q.size(), std::nanf("")), lse(rows * heads, std::nanf(""));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::size_t p = 0; p < 3; ++p) {
        std::copy_n(cases_[p].q.begin() + row * width, width, q.begin() + (row * 3 + static_cast<int>(p)) * width);
      }
    }
    AttentionWorkspace workspace;
    const VariantSetup setup = variant_setup(cases_[0], VariantId::kPlain);
    const Status status = run_attention(planner.view(), setup.params, VariantId::kPlain,
                                        cpu_tensor(q.data(), DType::kF32, rows, heads, kHeadDim), pools_.data(), 3,
                                        cpu_tensor(out.data(), DType::kF32, rows, heads, kHeadDim), lse.data(),
                                        workspace, test_threads());
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<RunResult> results(3);
    for (std::int64_t i = 0; i < rows * 3; ++i) {
      RunResult& result = results[i % 3];
      result.out.insert(result.out.end(), out.begin() + i * width, out.begin() + (i + 1) * width);
      result.lse.insert(result.lse.end(), lse.begin() + i * kHeads * kGroup, lse.begin() + (i + 1) * kHeads * kGroup);
    }
    return results;
  }

  std::vector<AttentionCase> cases_;
  std::vector<abi::KvPoolView> pools_;
  std::vector<abi::BlockRow> block_rows_;
  std::vector<std::uint32_t> row_indices_;
  std::vector<std::int32_t> q_pos_, entries_, positions_;
  const std::vector<std::uint32_t> token_bytes_ = {2 * kHeadDim * 2, 2 * kHeadDim * 4, 2 * kHeadDim * 2};
};

TEST_F(PoolsTest, EveryPoolAgreesWithTheOracle) {
  tested_products() = AttentionProducts::kF32;
  for (const bool invariant : {false, true}) {
    lay_out(invariant);
    Planner planner = make(invariant);
    const Status planned = planner.plan_block_rows(batch());
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    const std::vector<RunResult> results = run(planner);
    for (std::size_t p = 0; p < 3; ++p) {
      Judge judge;
      const VariantSetup setup = variant_setup(cases_[p], VariantId::kPlain);
      judge.judge(cases_[p], setup.oracle, DType::kF32, results[p],
                  cases_[p].describe() + (invariant ? ", invariant" : ""));
    }
  }
}

// Streaming heads read sinks and window, whatever the length: the plan's bytes say so, in each pool's own format.
TEST_F(PoolsTest, BytesAreThoseOfSinksAndWindows) {
  lay_out(false);
  Planner planner = make(false);
  ASSERT_TRUE(planner.plan_block_rows(batch()).ok());
  std::uint64_t bytes = 0;
  const auto add = [&](std::uint64_t tokens, int pool) { bytes += tokens * kHeads * token_bytes_[pool]; };
  const int tile_tokens = 128 / kGroup;
  for (int r = 0; r < cases_[0].num_requests(); ++r) {
    const int count = cases_[0].spec.q_lens[r];
    const int end = cases_[0].spec.kv_lens[r];
    std::uint64_t ring = 0;
    for (int page = 0; page * 16 < end; ++page) ring += in_ring(r, page) ? std::min(16, end - page * 16) : 0;
    for (int row = 0; row < count; row += tile_tokens) {
      const int first = end - count + row;
      const int last = std::min(first + tile_tokens, end);
      add(last, 0);
      if (end <= kSinks + kWindow) {
        add(last, 1);
      } else {
        add(std::min(last, kSinks), 1);
        const int begin = std::max(first - kWindow + 1, kSinks);
        if (last > begin) add(last - begin, 1);
      }
      add(ring, 2);
    }
  }
  EXPECT_EQ(planner.stats().kv_bytes, bytes);
}

// In batch-invariant mode a query's bits do not depend on which others of its request are computed beside it.
TEST_F(PoolsTest, BitsDependOnThePositionAlone) {
  lay_out(true);
  Planner planner = make(true);
  ASSERT_TRUE(planner.plan_block_rows(batch()).ok());
  const std::vector<RunResult> together = run(planner);
  // The same queries in two calls: the odd block rows' requests are cut in halves.
  std::vector<abi::BlockRow> halves;
  for (const abi::BlockRow& whole : block_rows_) {
    if (whole.pool == 2) {
      halves.push_back(whole);
      continue;
    }
    const std::uint32_t first = whole.row_count / 3;
    for (const auto& [begin, count] : {std::pair{0u, first}, std::pair{first, whole.row_count - first}}) {
      if (count == 0) continue;
      abi::BlockRow part = whole;
      part.row_begin += begin;
      part.row_count = count;
      const auto end = static_cast<std::uint32_t>(q_pos_[part.row_begin + count - 1]) + 1;
      part.num_tokens = std::min(whole.num_tokens, end);
      halves.push_back(part);
    }
  }
  block_rows_ = halves;
  const Status planned = planner.plan_block_rows(batch());
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  const std::vector<RunResult> apart = run(planner);
  for (int p = 0; p < 2; ++p) {
    EXPECT_EQ(together[p].out, apart[p].out) << "pool " << p;
    EXPECT_EQ(together[p].lse, apart[p].lse) << "pool " << p;
  }
}

}  // namespace
}  // namespace fovea::cpu
