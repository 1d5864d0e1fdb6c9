// The picture of steps: two lanes where the device has times, one where it has none, and how long it was idle.
#include "bench/serve/timeline.h"

#include <gtest/gtest.h>

namespace fovea::app {
namespace {

std::vector<StepSpan> steps(bool device) {
  std::vector<StepSpan> spans;
  for (int i = 0; i < 10; ++i) {
    const double at = 100.0 + 0.010 * i;
    spans.push_back({"schedule", false, at, at + 0.001, 0, 0});
    spans.push_back({"wait", false, at + 0.001, at + 0.009, 0, 0});
    if (device) spans.push_back({"step", true, at, at + 0.008, 3, 3});
  }
  return spans;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(StepTimeline, DrawsTheLastStepsOfBothLanes) {
  const std::string svg = draw_timeline(steps(true), 4, "Steps");
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_EQ(count(svg, "<title>schedule: 1000.0 us"), 4u);
  EXPECT_EQ(count(svg, "<title>3 sequences, 3 tokens: 8000.0 us"), 4u);
  EXPECT_NE(svg.find(">device<"), std::string::npos);
  const std::string host = draw_timeline(steps(false), 4, "Steps");
  EXPECT_EQ(count(host, "<title>wait"), 4u);
  EXPECT_EQ(host.find(">device<"), std::string::npos);
  EXPECT_EQ(draw_timeline({}, 4, "Steps").rfind("<svg", 0), 0u);
}

TEST(StepTimeline, IdleIsWhatTheDeviceDidNotWork) {
  EXPECT_NEAR(idle_share(steps(true)), 1.0 - 10 * 0.008 / 0.098, 1e-9);
  EXPECT_EQ(idle_share(steps(false)), 0.0);
}

}  // namespace
}  // namespace fovea::app
