#include "engine/speculate/ngram_drafter.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace fovea {
namespace {

using Tokens = std::vector<std::int32_t>;

// The path to each node that has none behind it, best first.
std::vector<Tokens> branches(const DraftTree& tree) {
  std::vector<Tokens> paths;
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    const bool leaf =
        std::none_of(tree.begin(), tree.end(), [&](const DraftNode& node) { return node.parent == index; });
    if (!leaf) continue;
    Tokens path;
    for (std::int32_t at = index; at >= 0; at = tree[static_cast<std::size_t>(at)].parent) {
      path.insert(path.begin(), tree[static_cast<std::size_t>(at)].token);
    }
    paths.push_back(path);
  }
  return paths;
}

Tokens chain(const Tokens& text, std::int32_t most) {
  const auto paths = branches(NgramDrafter().draft(text, most, false));
  EXPECT_LE(paths.size(), 1u);
  return paths.empty() ? Tokens() : paths.front();
}

// As the engine tells what became of a draft: the tokens along `accepted` were.
void verify(NgramDrafter& drafter, const DraftTree& tree, const Tokens& accepted) {
  std::int32_t last = -1;
  for (const std::int32_t token : accepted) {
    const std::int32_t next = find_child(tree, last, token);
    if (next < 0) break;
    last = next;
  }
  drafter.verified(tree, last);
}

TEST(NgramDrafter, TakesWhatFollowedTheLongestMatch) {
  // 2 3 stands twice before; the earlier time after the same 1.
  EXPECT_EQ(chain({1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 1, 2, 3}, 3), (Tokens{4, 5, 9}));
  // Of equal matches the latest.
  EXPECT_EQ(chain({8, 2, 3, 4, 9, 2, 3, 6, 7, 2, 3}, 2), (Tokens{6, 7}));
}

TEST(NgramDrafter, GoesOnWithALoop) {
  EXPECT_EQ(chain({1, 2, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(chain({7, 7, 7}, 4), (Tokens{7, 7, 7, 7}));
}

TEST(NgramDrafter, DraftsNothingWhereNothingMatches) {
  EXPECT_TRUE(chain({}, 4).empty());
  EXPECT_TRUE(chain({1}, 4).empty());
  EXPECT_TRUE(chain({1, 2, 3, 4, 5}, 4).empty());
  EXPECT_TRUE(chain({1, 2, 3, 1, 2}, 0).empty());
  EXPECT_TRUE(chain({1, 2, 3, 1, 2}, -3).empty());
  EXPECT_EQ(chain({1, 2, 3, 1, 2}, 1), (Tokens{3}));
  EXPECT_EQ(chain({1, 2, 3, 4, 2}, 2), (Tokens{3, 4}));  // one token that stood before
}

TEST(NgramDrafter, BranchesWhereTheTextWentOnDifferently) {
  // After 1 2 came 5 6, 5 7 and 8: the latest first, and what is common once.
  const Tokens text = {0, 1, 2, 5, 6, 0, 1, 2, 5, 7, 0, 1, 2, 8, 9, 0, 1, 2};
  const DraftTree tree = NgramDrafter().draft(text, 100, true);
  ASSERT_EQ(tree.size(), static_cast<std::size_t>(NgramDrafter::kMostTokens));
  EXPECT_GE(find_child(tree, -1, 5), 0);
  EXPECT_GE(find_child(tree, -1, 8), 0);
  EXPECT_FALSE(is_chain(tree));
  for (std::size_t i = 0; i < tree.size(); ++i) {
    ASSERT_LT(tree[i].parent, static_cast<std::int32_t>(i));
    if (i > 0) {
      EXPECT_LE(tree[i].acceptance, tree[i - 1].acceptance);
    }
    const std::int32_t parent = tree[i].parent;
    EXPECT_EQ(tree[i].depth, parent < 0 ? 1 : tree[static_cast<std::size_t>(parent)].depth + 1);
    EXPECT_LT(tree[i].acceptance, parent < 0 ? 1.0f : tree[static_cast<std::size_t>(parent)].acceptance);
    EXPECT_EQ(find_child(std::span(tree).first(i), parent, tree[i].token), -1);
  }
  // Two of three went on with 5.
  EXPECT_EQ(tree.front().token, 5);
  EXPECT_GT(tree.front().share, 0.55f);
  // A match that is a token longer counts four times as much as one that is not.
  const DraftTree longer = NgramDrafter().draft(Tokens{3, 1, 2, 5, 0, 4, 1, 2, 8, 9, 3, 1, 2}, 100, true);
  EXPECT_EQ(longer.front().token, 5);
  EXPECT_NEAR(longer.front().share, 0.8f, 1e-6f);
}

TEST(DraftTree, HasAFirstChain) {
  const DraftTree tree = {
      {.token = 5, .parent = -1, .acceptance = 0.9f}, {.token = 6, .parent = -1, .acceptance = 0.8f},
      {.token = 7, .parent = 1, .acceptance = 0.7f},  {.token = 8, .parent = 0, .acceptance = 0.6f},
      {.token = 9, .parent = 0, .acceptance = 0.5f},  {.token = 4, .parent = 3, .acceptance = 0.4f}};
  const DraftTree chain = first_chain(tree);
  ASSERT_TRUE(is_chain(chain));
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0].token, 5);
  EXPECT_EQ(chain[1].token, 8);
  EXPECT_EQ(chain[2].token, 4);
  EXPECT_TRUE(first_chain({}).empty());
}

TEST(NgramDrafter, SortsByDepth) {
  PhiloxRng rng(3);
  for (int trial = 0; trial < 50; ++trial) {
    Tokens text;
    for (int i = 0; i < 60; ++i) text.push_back(static_cast<std::int32_t>(rng.next_below(3)));
    const DraftTree tree = NgramDrafter().draft(text, 100, true);
    DraftTree sorted = tree;
    sort_by_depth(sorted);
    ASSERT_EQ(sorted.size(), tree.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      ASSERT_LT(sorted[i].parent, static_cast<std::int32_t>(i));
      if (i > 0) {
        ASSERT_GE(sorted[i].depth, sorted[i - 1].depth);
      }
    }
    auto before = branches(tree), after = branches(sorted);
    std::sort(before.begin(), before.end());
    std::sort(after.begin(), after.end());
    EXPECT_EQ(after, before);
  }
}

TEST(NgramDrafter, TrustsMatchesAsTheyFared) {
  const Tokens text = {90, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 91, 1, 2, 3};  // three tokens match
  NgramDrafter drafter;
  const float first = drafter.draft(text, 100, true).front().acceptance;
  for (int i = 0; i < 4; ++i) verify(drafter, drafter.draft(text, 100, true), {10, 11});
  const DraftTree liked = drafter.draft(text, 100, true);
  EXPECT_GT(liked.front().acceptance, first);
  EXPECT_GT(liked[1].acceptance, first);
  // The third was wrong each time: matches of five tokens.
  EXPECT_LT(liked[2].acceptance / liked[1].acceptance, 0.5f);
  for (int i = 0; i < 2; ++i) verify(drafter, drafter.draft(text, 100, true), {});
  EXPECT_LT(drafter.draft(text, 100, true).front().acceptance, liked.front().acceptance);
}

TEST(NgramDrafter, TrustsLongMatchesMore) {
  const Tokens text = {90, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 91, 1, 2, 3, 4, 5, 6};
  const std::span<const std::int32_t> all(text);
  float last = 0.0f;
  for (const std::size_t matched : {1, 2, 3, 4, 6}) {
    const DraftTree draft = NgramDrafter().draft(all.first(15 + matched), 100, true);
    ASSERT_FALSE(draft.empty());
    EXPECT_GT(draft.front().acceptance, last);
    last = draft.front().acceptance;
  }
  EXPECT_EQ(chain(text, 100), (Tokens{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(chain(text, 3).size(), 3u);
}

TEST(NgramDrafter, TakesForcedTokens) {
  const Tokens loop(50, 7), forced = {1, 2, 3, 4, 5, 6, 7, 8};
  NgramDrafter drafter;
  const DraftTree draft = drafter.draft(loop, 100, true, forced);
  EXPECT_EQ(branches(draft), (std::vector<Tokens>{{1, 2, 3, 4, 5, 6}}));
  EXPECT_TRUE(is_chain(draft));
  EXPECT_EQ(draft.back().acceptance, 1.0f);
  EXPECT_EQ(branches(drafter.draft(loop, 2, true, forced)), (std::vector<Tokens>{{1, 2}}));
  EXPECT_TRUE(drafter.draft(loop, 0, true, forced).empty());
  for (int i = 0; i < 3; ++i) drafter.verified(draft, -1);
  EXPECT_TRUE(drafter.draft(loop, 100, true, forced).empty());
}

TEST(NgramDrafter, StopsForLongerAndLongerWhereItIsWrong) {
  const Tokens loop(50, 7);
  NgramDrafter drafter;
  std::vector<int> drafts;  // made in each of four runs of 200 steps
  for (int run = 0; run < 4; ++run) {
    drafts.push_back(0);
    for (int step = 0; step < 200; ++step) {
      const DraftTree tree = drafter.draft(loop, 100, true);
      drafter.verified(tree, -1);
      drafts.back() += tree.empty() ? 0 : 1;
    }
  }
  EXPECT_LT(drafts[0], 20);
  EXPECT_LE(drafts[3], 3);
  DraftTree tree;
  while (tree.empty()) tree = drafter.draft(loop, 100, true);
  drafter.verified(tree, 1);
  drafter.verified(tree, -1);
  EXPECT_FALSE(drafter.draft(loop, 100, true).empty());
}

}  // namespace
}  // namespace fovea
