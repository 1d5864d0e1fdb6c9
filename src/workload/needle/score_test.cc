// Intervals against known values; the heat map shows what was counted and nothing unescaped.
#include "workload/needle/score.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

NeedleCount count_of(std::int64_t right, std::int64_t asked) {
  NeedleCount count;
  count.right = right;
  count.asked = asked;
  return count;
}

TEST(NeedleScore, WilsonIntervals) {
  // Values of the closed form, worked out by hand to three digits.
  EXPECT_NEAR(wilson_interval(count_of(990, 1000)).first, 0.982, 5e-4);
  EXPECT_NEAR(wilson_interval(count_of(990, 1000)).second, 0.995, 6e-4);
  EXPECT_NEAR(wilson_interval(count_of(200, 200)).first, 0.981, 5e-4);
  EXPECT_DOUBLE_EQ(wilson_interval(count_of(200, 200)).second, 1.0);
  EXPECT_DOUBLE_EQ(wilson_interval(count_of(0, 50)).first, 0.0);
  EXPECT_EQ(wilson_interval(count_of(0, 0)), (std::pair<double, double>{0.0, 1.0}));
}

TEST(NeedleScore, HeatMapShowsEveryCell) {
  std::vector<NeedleScore> scores(2);
  scores[0].context = 8192;
  scores[1].context = 1000;
  for (int i = 0; i < 8; ++i) scores[0].depth[3].add(i != 0);
  scores[0].total = scores[0].depth[3];
  const std::string svg = draw_needle_heat_map(scores, "needle <dense> & \"paged\"");
  EXPECT_NE(svg.find("<title>7 of 8 right</title>"), std::string::npos);
  EXPECT_NE(svg.find(">0.88</text>"), std::string::npos);
  EXPECT_NE(svg.find(">8k</text>"), std::string::npos);
  EXPECT_NE(svg.find(">1000</text>"), std::string::npos);
  EXPECT_NE(svg.find("needle &lt;dense&gt; &amp; &quot;paged&quot;"), std::string::npos);
  std::size_t cells = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++cells;
  EXPECT_EQ(cells, 2u * (kNeedleDepths + 1));
}

}  // namespace
}  // namespace fovea
