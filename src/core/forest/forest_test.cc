// The prefix forest and the packing rule on page tables written by hand.
#include "core/forest/forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace fovea {
namespace {

struct Input {
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<std::int32_t> rows;  // empty: one a request
};

struct Built {
  std::vector<std::byte> memory;
  Forest forest;

  std::vector<std::uint32_t> requests_of(std::uint32_t node) const {
    const ForestNode& n = forest.nodes[node];
    std::vector<std::uint32_t> requests(forest.order.begin() + n.first, forest.order.begin() + n.first + n.count);
    std::sort(requests.begin(), requests.end());
    return requests;
  }
};

PackRule rule(bool always = true) {
  PackRule r;
  r.tokens_per_tile = 32;
  r.page_tokens = 16;
  r.partial_row_bytes = 4 * 1032;  // 4 query heads, head dim 128
  r.kv_token_bytes = 512;
  r.max_shared_rows = 100000;
  r.always_share = always;
  return r;
}

Built build(const Input& in, const PackRule& r) {
  std::size_t stride = 1;
  for (const auto& list : in.pages) stride = std::max(stride, list.size());
  std::vector<std::int32_t> table(in.pages.size() * stride, 0);
  std::vector<std::uint32_t> shareable;
  for (std::size_t i = 0; i < in.pages.size(); ++i) {
    std::copy(in.pages[i].begin(), in.pages[i].end(), table.begin() + static_cast<std::ptrdiff_t>(i * stride));
    shareable.push_back(static_cast<std::uint32_t>(in.pages[i].size()));
  }
  const std::vector<std::int32_t> rows = in.rows.empty() ? std::vector<std::int32_t>(in.pages.size(), 1) : in.rows;
  Built built;
  const std::uint32_t n = static_cast<std::uint32_t>(in.pages.size());
  Carver measure(nullptr);
  built.forest.carve(measure, n);
  built.memory.resize(measure.used());
  Carver fill(built.memory.data());
  built.forest.carve(fill, n);
  build_forest({n, table.data(), stride, rows.data(), shareable.data()}, r, 0, built.forest);
  return built;
}

TEST(ForestTest, NothingSharedMakesNoNodes) {
  const Built b = build({{{1, 2}, {3, 4}, {}, {5}}, {}}, rule());
  EXPECT_EQ(b.forest.nodes.size, 0u);
  for (const std::uint32_t begin : b.forest.private_begin) EXPECT_EQ(begin, 0u);
}

TEST(ForestTest, SeveralRootsAndSingles) {
  const Built b = build({{{1, 2, 3}, {9, 8}, {1, 2, 4}, {7}, {9, 5}}, {}}, rule());
  ASSERT_EQ(b.forest.nodes.size, 2u);
  EXPECT_EQ(b.requests_of(0), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(b.forest.nodes[0].page_end, 2u);
  EXPECT_EQ(b.requests_of(1), (std::vector<std::uint32_t>{1, 4}));
  EXPECT_EQ(b.forest.nodes[1].page_end, 1u);
  EXPECT_EQ(b.forest.private_begin[3], 0u);
  EXPECT_EQ(b.forest.private_begin[0], 2u);
}

TEST(ForestTest, ARequestMayEndInsideTheTree) {
  // 1 is a strict prefix of 0 and 2, which go on together.
  const Built b = build({{{1, 2, 3, 4, 5}, {1, 2}, {1, 2, 3, 4, 6}}, {}}, rule());
  ASSERT_EQ(b.forest.nodes.size, 2u);
  EXPECT_EQ(b.requests_of(0), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(b.forest.nodes[0].page_end, 2u);
  EXPECT_EQ(b.requests_of(1), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(b.forest.nodes[1].page_begin, 2u);
  EXPECT_EQ(b.forest.nodes[1].page_end, 4u);
  EXPECT_EQ(b.forest.private_begin[1], 2u);
  EXPECT_EQ(b.forest.private_begin[2], 4u);
}

TEST(ForestTest, IdenticalRequestsShareEverything) {
  const Built b = build({{{1, 2}, {1, 2}, {1, 2}}, {}}, rule());
  ASSERT_EQ(b.forest.nodes.size, 1u);
  EXPECT_EQ(b.forest.nodes[0].count, 3u);
  EXPECT_EQ(b.forest.nodes[0].page_end, 2u);
}

TEST(ForestTest, RequestsWithoutQueriesTakeNoPart) {
  const Built b = build({{{1, 2}, {1, 2}, {1, 2}}, {1, 0, 1}}, rule());
  ASSERT_EQ(b.forest.nodes.size, 1u);
  EXPECT_EQ(b.requests_of(0), (std::vector<std::uint32_t>{0, 2}));
}

TEST(ForestTest, SharedRunsEndAtWholeChunks) {
  PackRule r = rule();
  r.pages_multiple = 2;
  const Built b = build({{{1, 2, 3, 4}, {1, 2, 3, 5}, {1, 6}}, {}}, r);
  ASSERT_EQ(b.forest.nodes.size, 1u);  // page 1 alone is no whole chunk
  EXPECT_EQ(b.requests_of(0), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(b.forest.nodes[0].page_begin, 0u);
  EXPECT_EQ(b.forest.nodes[0].page_end, 2u);
  EXPECT_EQ(b.forest.private_begin[2], 0u);
}

// Rule: a child reads the run again when the partial states this saves outweigh it. Two requests of one query token
// under no other node: 2 * 2 states of 4128 bytes against one more reading of 512 bytes a token: worth sharing from
// 33 tokens on, 3 pages.
TEST(ForestTest, ShortRunsAreReadTwice) {
  EXPECT_EQ(build({{{1, 2, 3}, {1, 2, 4}}, {}}, rule(false)).forest.nodes.size, 0u);
  EXPECT_EQ(build({{{1, 2, 5, 3}, {1, 2, 5, 4}}, {}}, rule(false)).forest.nodes.size, 1u);
}

// A child whose rows fill tiles of their own adds no tile by reading for itself.
TEST(ForestTest, FullTilesGainNothingFromSharing) {
  std::vector<std::int32_t> run(256);
  for (int i = 0; i < 256; ++i) run[static_cast<std::size_t>(i)] = i;
  std::vector<std::int32_t> a = run, b = run, c = run;
  a.push_back(1000);
  b.push_back(1001);
  c.push_back(1002);
  EXPECT_EQ(build({{a, b}, {64, 64}}, rule(false)).forest.nodes.size, 0u);
  const Built mixed = build({{a, b, c}, {64, 1, 1}}, rule(false));
  ASSERT_EQ(mixed.forest.nodes.size, 1u);
  EXPECT_EQ(mixed.requests_of(0), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(mixed.forest.private_begin[0], 0u);
}

TEST(ForestTest, CapacityStopsSharing) {
  std::vector<std::vector<std::int32_t>> pages;
  for (int i = 0; i < 8; ++i) {
    std::vector<std::int32_t> list;
    for (int j = 0; j < 64; ++j) list.push_back(j);
    for (int j = 0; j < 64; ++j) list.push_back(1000 + 1000 * (i / 4) + j);
    list.push_back(5000 + i);
    pages.push_back(list);
  }
  PackRule r = rule(false);
  EXPECT_EQ(build({pages, {}}, r).forest.nodes.size, 3u);
  r.max_shared_rows = 16 + 4;  // 8 requests under the root count twice; one more node of 4
  const Built some = build({pages, {}}, r);
  EXPECT_EQ(some.forest.nodes.size, 2u);
  EXPECT_LE(some.forest.shared_rows, r.max_shared_rows);
  r.max_shared_rows = 7;
  EXPECT_EQ(build({pages, {}}, r).forest.nodes.size, 0u);
}

TEST(ForestTest, CommonPagesFindsTheFirstDifference) {
  std::vector<std::int32_t> a(300);
  for (int i = 0; i < 300; ++i) a[static_cast<std::size_t>(i)] = 7 * i;
  for (std::uint32_t at = 0; at <= 300; ++at) {
    std::vector<std::int32_t> b = a;
    if (at < 300) b[at] = -1;
    EXPECT_EQ(common_pages(a.data(), b.data(), 300), at);
    EXPECT_EQ(common_pages(a.data(), b.data(), at / 2), at / 2);
  }
}

}  // namespace
}  // namespace fovea
