#include "server/trace/trace_context.h"

#include <gtest/gtest.h>

namespace fovea::server {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";

TEST(TraceContext, ReadsTheHeader) {
  const auto context = parse_traceparent("00-" + kTrace + "-" + kParent + "-01");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kParent + "-00")->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kParent + "-fe")->sampled);
  EXPECT_TRUE(parse_traceparent("00-" + kTrace + "-" + kParent + "-ff")->sampled);
  // A later version may have more.
  EXPECT_TRUE(parse_traceparent("01-" + kTrace + "-" + kParent + "-01-more").has_value());
}

TEST(TraceContext, TakesNothingElse) {
  const std::string good = "00-" + kTrace + "-" + kParent + "-01";
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_traceparent(good.substr(0, length)).has_value()) << length;
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string wrong = good;
    wrong[i] = 'G';
    EXPECT_FALSE(parse_traceparent(wrong).has_value()) << wrong;
  }
  EXPECT_FALSE(parse_traceparent(good + "-more").has_value());
  EXPECT_FALSE(parse_traceparent("01-" + kTrace + "-" + kParent + "-01more").has_value());
  EXPECT_FALSE(parse_traceparent("ff-" + kTrace + "-" + kParent + "-01").has_value());
  EXPECT_FALSE(parse_traceparent("00-" + std::string(32, '0') + "-" + kParent + "-01").has_value());
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + std::string(16, '0') + "-01").has_value());
}

}  // namespace
}  // namespace fovea::server
