#include "engine/speculate/ngram_drafter.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(LookupDraft, TakesWhatFollowedTheLongestMatch) {
  // 2 3 stands twice before; the earlier time after the same 1.
  EXPECT_EQ(lookup_draft(Tokens{1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 1, 2, 3}, 3), (Tokens{4, 5, 9}));
  // Of equal matches the latest.
  EXPECT_EQ(lookup_draft(Tokens{8, 2, 3, 4, 9, 2, 3, 6, 7, 2, 3}, 2), (Tokens{6, 7}));
}

TEST(LookupDraft, GoesOnWithALoop) {
  EXPECT_EQ(lookup_draft(Tokens{1, 2, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(lookup_draft(Tokens{7, 7, 7}, 4), (Tokens{7, 7, 7, 7}));
}

TEST(LookupDraft, GuessesNothingWhereNothingMatches) {
  EXPECT_TRUE(lookup_draft(Tokens{}, 4).empty());
  EXPECT_TRUE(lookup_draft(Tokens{1}, 4).empty());
  EXPECT_TRUE(lookup_draft(Tokens{1, 1}, 4).empty());
  EXPECT_TRUE(lookup_draft(Tokens{1, 2, 3, 4, 2}, 4).empty());  // one token alone is no match
  EXPECT_TRUE(lookup_draft(Tokens{1, 2, 3, 1, 2}, 0).empty());
  EXPECT_EQ(lookup_draft(Tokens{1, 2, 3, 1, 2}, 1), (Tokens{3}));
}

TEST(NgramDrafter, DraftsMoreWhereItIsRight) {
  const Tokens text = {90, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 91, 1, 2, 3};  // three tokens match
  NgramDrafter drafter;
  const std::size_t first = drafter.draft(text, 100).size();
  drafter.verified(static_cast<std::int32_t>(first), static_cast<std::int32_t>(first));
  EXPECT_GT(drafter.draft(text, 100).size(), first);
  drafter.verified(6, 2);
  EXPECT_EQ(drafter.draft(text, 100).size(), 2u);
  for (int i = 0; i < 10; ++i) drafter.verified(2, 2);
  EXPECT_EQ(drafter.draft(text, 100).size(), static_cast<std::size_t>(NgramDrafter::kMostTokens));
  EXPECT_EQ(drafter.draft(text, 1).size(), 1u);
}

TEST(NgramDrafter, DraftsMostAfterALongMatch) {
  const Tokens text = {90, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 91, 1, 2, 3, 4, 5, 6};
  NgramDrafter drafter;
  drafter.verified(6, 1);  // two at most otherwise
  EXPECT_EQ(drafter.draft(text, 100), (Tokens{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(drafter.draft(text, 3).size(), 3u);
  EXPECT_EQ(drafter.draft(std::span(text).first(text.size() - 1), 100).size(), 2u);
}

TEST(NgramDrafter, TakesWhatSomebodyElseIsSureOf) {
  const Tokens loop(50, 7), sure = {1, 2, 3, 4, 5, 6, 7, 8};
  NgramDrafter drafter;
  EXPECT_EQ(drafter.draft(loop, 100, sure), (Tokens{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(drafter.draft(loop, 2, sure), (Tokens{1, 2}));
  EXPECT_TRUE(drafter.draft(loop, 0, sure).empty());
  for (int i = 0; i < 3; ++i) drafter.verified(6, 0);
  EXPECT_TRUE(drafter.draft(loop, 100, sure).empty());
}

TEST(NgramDrafter, StopsForLongerAndLongerWhereItIsWrong) {
  const Tokens loop(50, 7);
  NgramDrafter drafter;
  std::vector<int> drafts;  // made in each of four runs of 200 steps
  for (int run = 0; run < 4; ++run) {
    drafts.push_back(0);
    for (int step = 0; step < 200; ++step) {
      const auto drafted = static_cast<std::int32_t>(drafter.draft(loop, 100).size());
      drafter.verified(drafted, 0);
      drafts.back() += drafted > 0 ? 1 : 0;
    }
  }
  EXPECT_LT(drafts[0], 20);
  EXPECT_LE(drafts[3], 3);
  while (drafter.draft(loop, 100).empty()) {
  }
  drafter.verified(2, 2);
  drafter.verified(2, 0);
  EXPECT_FALSE(drafter.draft(loop, 100).empty());
}

}  // namespace
}  // namespace fovea
