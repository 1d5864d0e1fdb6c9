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

TEST(NeedleScore, PairedLosses) {
  const PairedLoss none = paired_loss(std::string(1000, '1'), std::string(1000, '1'));
  EXPECT_EQ(none.questions, 1000);
  EXPECT_EQ(none.lost, 0.0);
  EXPECT_NEAR(none.half_width, 0.00196, 1e-5);  // 1.96 sqrt(1) / 1002
  // 10 lost, 2 won: d = .08, 1.96 sqrt(10.5 + 2.5 - 64 / 102) / 102.
  std::string first(100, '1'), second(100, '1');
  for (int i = 0; i < 10; ++i) second[i] = '0';
  for (int i = 10; i < 12; ++i) first[i] = '0';
  const PairedLoss some = paired_loss(first, second);
  EXPECT_DOUBLE_EQ(some.lost, 0.08);
  EXPECT_NEAR(some.half_width, 0.06759, 1e-5);
  EXPECT_EQ(paired_loss(first, "11").questions, 2);
  EXPECT_EQ(paired_loss("", "").questions, 0);
}

TEST(NeedleScore, PanelsShowEverySetting) {
  NeedleScore score;
  score.context = 16384;
  for (int i = 0; i < 4; ++i) score.depth[9].add(i != 0);
  score.total = score.depth[9];
  std::vector<NeedlePanel> panels(7, {"a<b", {score, score}});
  const std::string svg = draw_needle_panels(panels);
  const auto count = [&](std::string_view text) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("a&lt;b"), 7u);
  EXPECT_EQ(count("<path"), 7u * 2 * kNeedleDepths);
  EXPECT_EQ(count(">16k</text>"), 14u);
  EXPECT_EQ(count(">0.75</text>"), 14u);
}

TEST(NeedleScore, HeatMapShowsEveryCell) {
  std::vector<NeedleScore> scores(2);
  scores[0].context = 8192;
  scores[1].context = 1000;
  for (int i = 0; i < 8; ++i) scores[0].depth[3].add(i != 0);
  scores[0].total = scores[0].depth[3];
  const std::string svg = draw_needle_heat_map(scores, "needle <dense> & \"paged\"");
  EXPECT_NE(svg.find("<title>7 of 8 right</title>"), std::string::npos);
  EXPECT_NE(svg.find(">7/8</text>"), std::string::npos);
  EXPECT_NE(svg.find(">8k</text>"), std::string::npos);
  EXPECT_NE(svg.find(">1000</text>"), std::string::npos);
  EXPECT_NE(svg.find("needle &lt;dense&gt; &amp; &quot;paged&quot;"), std::string::npos);
  std::size_t cells = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++cells;
  EXPECT_EQ(cells, 2u * (kNeedleDepths + 1));
}

}  // namespace
}  // namespace fovea
