// Ragged, paged and block-sparse layouts: round trips, conversions, and what bad input is told.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/random.h"
#include "core/layout/bsr.h"
#include "core/layout/paged.h"
#include "core/layout/ragged.h"
#include "core/plan/verify.h"

namespace fovea {
namespace {

using Ints = std::vector<std::int32_t>;

TEST(RaggedTest, IndptrRoundTrip) {
  const Ints lengths = {3, 0, 5};
  const auto indptr = indptr_of(lengths);
  ASSERT_TRUE(indptr.ok());
  EXPECT_EQ(*indptr, (Ints{0, 3, 3, 8}));
  EXPECT_EQ(lengths_of(*indptr), lengths);
  EXPECT_EQ(indptr_of(Ints{1, -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(indptr_of(Ints{1 << 30, 1 << 30}).status().code(), StatusCode::kOutOfRange);
}

TEST(RaggedTest, PaddedRoundTrip) {
  const Ints padded = {1, 2, 9, 9, 9, 9, 3, 4, 5};
  const Ints indptr = {0, 2, 2, 5};
  Ints ragged(5);
  ASSERT_TRUE(padded_to_ragged(padded.data(), 3, indptr, sizeof(std::int32_t), ragged.data()).ok());
  EXPECT_EQ(ragged, (Ints{1, 2, 3, 4, 5}));
  Ints back(9, 9);
  ASSERT_TRUE(ragged_to_padded(ragged.data(), indptr, sizeof(std::int32_t), 3, back.data()).ok());
  EXPECT_EQ(back, padded);
  EXPECT_FALSE(padded_to_ragged(padded.data(), 2, indptr, sizeof(std::int32_t), ragged.data()).ok());
}

TEST(RaggedTest, RefusesBadIndptr) {
  EXPECT_FALSE(validate_indptr(Ints{}, 0).ok());
  EXPECT_FALSE(validate_indptr(Ints{1, 2}, 2).ok());
  EXPECT_FALSE(validate_indptr(Ints{0, 3, 2}, 2).ok());
  EXPECT_FALSE(validate_indptr(Ints{0, 3}, 4).ok());
  EXPECT_TRUE(validate_indptr(Ints{0, 3, 3}, 3).ok());
}

TEST(PagedTest, CsrAndTableAgree) {
  const OwnedPagedCsr csr{16, {0, 2, 2, 5}, {7, 3, 1, 2, 4}, {5, 0, 16}};
  const auto table = to_page_table(csr.view(), 4);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->stride, 4);
  EXPECT_EQ(table->kv_lens, (Ints{21, 0, 48}));
  EXPECT_EQ(table->entries, (Ints{7, 3, 0, 0, 0, 0, 0, 0, 1, 2, 4, 0}));
  const auto back = to_csr(table->view());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->indptr, csr.indptr);
  EXPECT_EQ(back->indices, csr.indices);
  EXPECT_EQ(back->last_page_len, csr.last_page_len);
}

TEST(PagedTest, SplitPagesNameTheSameTokens) {
  const PageTable table{32, 2, {5, 1, 0, 0}, {40, 10}};
  const auto split = split_pages(table.view(), 8);
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->stride, 8);
  for (std::int32_t request = 0; request < 2; ++request) {
    for (std::int32_t token = 0; token < table.kv_lens[static_cast<std::size_t>(request)]; ++token) {
      const std::int32_t old_slot = table.entries[static_cast<std::size_t>(request * 2 + token / 32)] * 32 + token % 32;
      const std::int32_t new_slot = split->entries[static_cast<std::size_t>(request * 8 + token / 8)] * 8 + token % 8;
      EXPECT_EQ(old_slot, new_slot);
    }
  }
  EXPECT_FALSE(split_pages(table.view(), 12).ok());
}

TEST(PagedTest, RefusesBadTables) {
  EXPECT_FALSE(validate(PageTable{16, 1, {3}, {17}}.view(), 10).ok());
  EXPECT_FALSE(validate(PageTable{16, 1, {3}, {-1}}.view(), 10).ok());
  EXPECT_FALSE(validate(PageTable{16, 1, {10}, {16}}.view(), 10).ok());
  EXPECT_FALSE(validate(PageTable{16, 2, {1}, {16}}.view(), 10).ok());
  EXPECT_FALSE(validate(PageTable{0, 1, {1}, {16}}.view(), 10).ok());
  EXPECT_TRUE(validate(PageTable{16, 1, {9}, {16}}.view(), 10).ok());
  EXPECT_FALSE(validate(OwnedPagedCsr{16, {0, 1}, {3}, {0}}.view(), 10).ok());
  EXPECT_FALSE(validate(OwnedPagedCsr{16, {0, 1}, {3}, {17}}.view(), 10).ok());
  EXPECT_FALSE(validate(OwnedPagedCsr{16, {0, 1}, {3}, {}}.view(), 10).ok());
  EXPECT_FALSE(validate(OwnedPagedCsr{16, {0, 1}, {-3}, {1}}.view(), 10).ok());
}

TEST(BsrTest, MasksRoundTripAtEveryBlockShape) {
  PhiloxRng rng(3);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int32_t rows = 1 + static_cast<std::int32_t>(rng.next_below(30));
    const std::int32_t cols = 1 + static_cast<std::int32_t>(rng.next_below(40));
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * cols));
    for (std::uint8_t& element : mask) element = rng.next_below(12) == 0;
    for (const auto& [r, c] : {std::pair{1, 1}, {4, 8}, {3, 5}, {64, 64}}) {
      const auto m = bsr_from_mask(mask, rows, cols, r, c);
      ASSERT_TRUE(m.ok() && validate(*m).ok());
      const auto covered = mask_of(*m);
      ASSERT_TRUE(covered.ok());
      for (std::int32_t i = 0; i < rows; ++i) {
        for (std::int32_t j = 0; j < cols; ++j) {
          bool any = false;
          for (std::int32_t bi = i / r * r; bi < std::min(rows, i / r * r + r); ++bi) {
            for (std::int32_t bj = j / c * c; bj < std::min(cols, j / c * c + c); ++bj) {
              any |= mask[static_cast<std::size_t>(bi * cols + bj)] != 0;
            }
          }
          ASSERT_EQ((*covered)[static_cast<std::size_t>(i * cols + j)] != 0, any);
        }
      }
    }
  }
}

TEST(BsrTest, RefiningKeepsTheElements) {
  PhiloxRng rng(4);
  std::vector<std::uint8_t> mask(37 * 50);
  for (std::uint8_t& element : mask) element = rng.next_below(40) == 0;
  const auto m = bsr_from_mask(mask, 37, 50, 8, 12);
  ASSERT_TRUE(m.ok());
  const auto fine = refine(*m, 2, 4);
  ASSERT_TRUE(fine.ok() && validate(*fine).ok());
  EXPECT_EQ(*mask_of(*m), *mask_of(*fine));
  EXPECT_FALSE(refine(*m, 3, 4).ok());
}

TEST(BsrTest, BlockRowsArePlanned) {
  PhiloxRng rng(5);
  std::vector<std::uint8_t> mask(40 * 150);
  for (std::uint8_t& element : mask) element = rng.next_below(60) == 0;
  const auto m = bsr_from_mask(mask, 40, 150, 8, 16);
  ASSERT_TRUE(m.ok());
  PlannerOptions options;
  options.num_workers = 5;
  options.limits = {8, 64, 64, 0, 0};
  Ints pages(10);
  std::iota(pages.rbegin(), pages.rend(), 100);
  const auto rows = bsr_block_rows(*m, pages, options);
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  auto planner = Planner::create(options);
  ASSERT_TRUE(planner.ok() && planner->plan_block_rows(rows->view()).ok());
  EXPECT_TRUE(verify_schedule(planner->view(), planner->max_partial_rows()).ok());
  std::uint64_t elements = 0;
  for (const abi::BlockRow& b : rows->block_rows) elements += std::uint64_t{b.num_tokens} * b.row_count;
  const auto covered = mask_of(*m);
  EXPECT_EQ(elements, static_cast<std::uint64_t>(std::accumulate(covered->begin(), covered->end(), 0)));
  options.page_tokens = 32;
  EXPECT_FALSE(bsr_block_rows(*m, pages, options).ok());
}

TEST(BsrTest, RefusesBadMatrices) {
  EXPECT_FALSE(validate(BsrMatrix{4, 4, 2, 2, {0, 1}, {0}}).ok());
  EXPECT_FALSE(validate(BsrMatrix{4, 4, 2, 2, {0, 1, 2}, {0, 2}}).ok());
  EXPECT_FALSE(validate(BsrMatrix{4, 4, 2, 2, {0, 2, 2}, {1, 0}}).ok());
  EXPECT_FALSE(validate(BsrMatrix{4, 4, 0, 2, {0}, {}}).ok());
  EXPECT_TRUE(validate(BsrMatrix{4, 4, 2, 2, {0, 2, 2}, {0, 1}}).ok());
  EXPECT_FALSE(bsr_from_mask(std::vector<std::uint8_t>(3), 2, 2, 1, 1).ok());
}

}  // namespace
}  // namespace fovea
