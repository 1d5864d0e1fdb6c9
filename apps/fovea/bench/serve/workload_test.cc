// Requests of the named workloads: lengths, what they share, when they come, and what does not fit.
#include "bench/serve/workload.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/serve/picture.h"

namespace fovea::app {
namespace {

std::int64_t all_tokens(const std::vector<LoadRequest>& requests) {
  std::int64_t tokens = 0;
  for (const LoadRequest& request : requests) tokens += static_cast<std::int64_t>(request.prompt.size());
  return tokens;
}

std::vector<LoadRequest> made(std::string_view name, const WorkloadOptions& options, std::int32_t max_context = 0) {
  auto requests = make_workload(name, {}, options, 1000, max_context);
  EXPECT_TRUE(requests.ok()) << requests.status().message();
  return requests.ok() ? *requests : std::vector<LoadRequest>();
}

TEST(Workload, EveryNameGivesRequestsThatFit) {
  WorkloadOptions options;
  options.requests = 20;
  for (const std::string_view name : workload_names()) {
    const std::vector<LoadRequest> requests = made(name, options, 16384);
    ASSERT_GE(requests.size(), 20u) << name;
    for (const LoadRequest& request : requests) {
      EXPECT_LE(request.prompt.size() + static_cast<std::size_t>(request.max_tokens), 16384u) << name;
      EXPECT_TRUE(std::all_of(request.prompt.begin(), request.prompt.end(),
                              [](std::int32_t token) { return token >= 16 && token < 1000; }));
    }
    EXPECT_EQ(made(name, options, 16384)[5].prompt, requests[5].prompt) << name;
    options.seed = 1;
    EXPECT_NE(made(name, options, 16384)[5].prompt, requests[5].prompt) << name;
    options.seed = 0;
  }
  const auto unknown = make_workload("chats", {}, options, 1000, 0);
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(unknown.status().message()).find("sharegpt"), std::string::npos);
}

TEST(Workload, RandomPromptsShareWhatIsAsked) {
  WorkloadOptions options;
  options.requests = 10;
  options.prompt_tokens = 300;
  options.shared_tokens = 200;
  const std::vector<LoadRequest> requests = made("random", options);
  EXPECT_EQ(all_tokens(requests), 3000);
  EXPECT_NEAR(static_cast<double>(unique_prompt_tokens(requests)), 200 + 10 * 100, 10);
  const auto long_ones = make_workload("random", {}, options, 1000, 320);
  EXPECT_NE(std::string(long_ones.status().message()).find("do not fit"), std::string::npos);
}

TEST(Workload, TracesAreCutAndScaled) {
  const std::vector<TraceRequest> trace = {{0.0, 1024, 100, {1, 2}}, {1500.0, 1024, 100, {1, 3}}, {9e3, 10, 1, {4}}};
  WorkloadOptions options;
  options.requests = 2;
  options.length_scale = 0.5;
  const auto requests = make_workload("trace", trace, options, 1000, 0);
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[1].arrival_s, 1.5);
  EXPECT_EQ((*requests)[1].prompt.size(), 512u);
  EXPECT_EQ((*requests)[1].max_tokens, 50);
  EXPECT_NEAR(static_cast<double>(unique_prompt_tokens(*requests)), 768, 3);
  const auto narrow = make_workload("trace", trace, options, 1000, 300);
  ASSERT_TRUE(narrow.ok());
  EXPECT_EQ((*narrow)[0].prompt.size(), 250u);
}

TEST(Workload, ArrivalsAreInOrderAndStreamsComeAtOnce) {
  WorkloadOptions options;
  options.requests = 200;
  std::vector<LoadRequest> requests = made("sharegpt", options);
  set_poisson_arrivals(&requests, 10.0, 1);
  EXPECT_TRUE(std::is_sorted(requests.begin(), requests.end(),
                             [](const LoadRequest& a, const LoadRequest& b) { return a.arrival_s < b.arrival_s; }));
  EXPECT_NEAR(requests.back().arrival_s, 20.0, 6.0);
  options.requests = 5;
  options.streams = 3;
  requests = made("interrupted", options);
  ASSERT_EQ(requests.size(), 8u);
  set_poisson_arrivals(&requests, 10.0, 1);
  EXPECT_EQ(requests[2].arrival_s, 0.0);
  EXPECT_FALSE(requests[2].disturbs);
  EXPECT_GT(requests[3].arrival_s, 0.0);
  EXPECT_TRUE(requests[3].disturbs);
  EXPECT_EQ(requests[3].prompt.size(), 8192u);
  EXPECT_EQ(requests[3].max_tokens, 1);
}

TEST(Workload, PicturesHoldARowForEachRequest) {
  LoadResult result;
  result.seconds = 2.0;
  result.requests.resize(3);
  result.requests[0].choices = {{{0.5, 1.0}, 2}};
  result.requests[1].choices = {{{0.7, 1.9}, 2}};
  const std::string svg = draw_loads({{"a < b", result}});
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("request 1: first token after 700.0 ms"), std::string::npos);
  EXPECT_NE(svg.find("request 2: failed"), std::string::npos);
}

}  // namespace
}  // namespace fovea::app
