// The search for streaming heads on made-up scores.
#include "engine/model/head_search.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fovea {
namespace {

using Heads = std::vector<ModelHead>;

TEST(HeadSearch, LeavesOutTheCostliestUntilTheLossFits) {
  int calls = 0;
  // Head (1, 0) finds the answers; (0, 0) and (2, 1) cost a little, but both together too much.
  const ScoreHeads score = [&](const Heads& streaming) -> Result<HeadScore> {
    ++calls;
    const auto streams = [&](ModelHead head) { return std::count(streaming.begin(), streaming.end(), head) > 0; };
    double right = 1.0;
    if (streams({1, 0})) right -= 0.5;
    if (streams({0, 0})) right -= 0.01;
    if (streams({2, 1})) right -= 0.02;
    return HeadScore{right, streams({0, 1}) ? -0.2 : -0.1};
  };
  const auto found = find_streaming_heads(3, 2, 0.025, score);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->streaming, (Heads{{0, 0}, {0, 1}, {1, 1}, {2, 0}}));
  EXPECT_DOUBLE_EQ(found->together.right, 0.99);
  EXPECT_EQ(found->alone.front().head, (ModelHead{1, 1})) << "nothing lost, and as sure as before";
  EXPECT_EQ(found->alone.back().head, (ModelHead{1, 0}));
  EXPECT_EQ(calls, 1 + 6 + 2);
}

TEST(HeadSearch, NoHeadNeedStream) {
  const auto found = find_streaming_heads(1, 2, 0.0, [](const Heads& streaming) -> Result<HeadScore> {
    return HeadScore{streaming.empty() ? 1.0 : 0.9, 0.0};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->streaming.empty());
  EXPECT_DOUBLE_EQ(found->together.right, 1.0);
}

TEST(HeadSearch, ErrorsEndIt) {
  const auto found = find_streaming_heads(
      2, 2, 0.0, [](const Heads&) -> Result<HeadScore> { return Status(StatusCode::kUnavailable, "no engine"); });
  EXPECT_EQ(found.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fovea
