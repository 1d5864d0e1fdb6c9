// GET /engine.json over real sockets: what it says, that its size is bounded, and who may ask.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;
using LiveViewTest = ServerTest;

TEST_F(LiveViewTest, ShowsWhatTheEngineShows) {
  FakeEngine::Options options;
  RequestView request;
  request.id = 7;
  request.running = true;
  request.prompt_tokens = 40;
  request.shared_pages = 2;
  options.view.requests = {request};
  options.view.requests_left_out = 3;
  options.view.page_tokens = 16;
  options.view.pools = {{0, 4096, 100, 30, 10, 20, 50}};
  options.view.prefixes = {{1, 0, 0, 2, 1, 9}, {2, 1, 2, 5, 0, 8}};
  options.view.timeline.workers = 2;
  options.view.timeline.items = {{0, 0, 64, 7, 1, 0, 1, 40}, {1, 0, 32, 0, 3, 1, 3, 16}};
  options.view.timeline.items_left_out = 5;
  start(options);
  post("/v1/completions", R"({"prompt":"abc"})");
  const HttpResponse response = get("/engine.json");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.content_type, "application/json");
  const json body = json::parse(response.body);
  EXPECT_EQ(body["model"], "fake");
  EXPECT_EQ(body["max_model_len"], 4096);
  EXPECT_EQ(body["healthy"], true);
  EXPECT_EQ(body["tokens"]["prompt"], 3);
  EXPECT_EQ(body["tokens"]["generated"], 3);
  EXPECT_EQ(body["requests"]["finished"], 1);
  EXPECT_EQ(body["requests"]["left_out"], 3);
  EXPECT_EQ(body["requests"]["list"][0]["id"], 7);
  EXPECT_EQ(body["requests"]["list"][0]["state"], "running");
  EXPECT_EQ(body["requests"]["list"][0]["shared_pages"], 2);
  EXPECT_EQ(body["kv"]["page_tokens"], 16);
  EXPECT_EQ(body["kv"]["pools"][0]["used"], 30);
  EXPECT_EQ(body["kv"]["pools"][0]["free"], 50);
  const json& prefixes = body["prefixes"];
  EXPECT_EQ(prefixes["fields"].size(), prefixes["nodes"][1].size());
  EXPECT_EQ(prefixes["nodes"][1], json({2, 1, 2, 5, 0, 8}));
  const json& timeline = body["timeline"];
  EXPECT_EQ(timeline["fields"].size(), timeline["items"][0].size());
  EXPECT_EQ(timeline["items"][1], json({1, 0, 32, 0, 3, 1, 3, 16}));
  EXPECT_EQ(timeline["left_out"], 5);
  // One first token, and two gaps behind it.
  std::uint64_t first = 0, gaps = 0;
  for (const json& count : body["time_to_first_token"]["counts"]) first += count.get<std::uint64_t>();
  for (const json& count : body["inter_token_latency"]["counts"]) gaps += count.get<std::uint64_t>();
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(gaps, 2u);
  EXPECT_EQ(body["time_to_first_token"]["counts"].size(), body["time_to_first_token"]["bounds"].size() + 1);
}

TEST_F(LiveViewTest, IsSmallEvenWhenFull) {
  FakeEngine::Options options;
  options.view.requests.resize(EngineView::kMaxRequests);
  for (RequestView& request : options.view.requests) {
    request.id = 1'000'000'000;
    request.seconds = 86400.0;
    request.prompt_tokens = request.cached_tokens = request.computed_tokens = request.max_tokens = 10'000'000;
  }
  options.view.prefixes.assign(EngineView::kMaxPrefixes,
                               {1'000'000'000, 1'000'000'000, 1'000'000, 100'000, 4096, 10'000'000'000});
  options.view.timeline.items.assign(EngineView::kMaxItems,
                                     {1000, 10'000'000'000, 10'000'000'000, 1'000'000'000, 1, 128, 1024, 1'000'000});
  start(options);
  const HttpResponse response = get("/engine.json");
  EXPECT_EQ(json::parse(response.body)["timeline"]["items"].size(), EngineView::kMaxItems);
  EXPECT_LT(response.body.size(), 256u << 10);
}

TEST_F(LiveViewTest, AsksForTheKey) {
  ServerOptions options;
  options.service.api_keys = {"secret"};
  start({}, options);
  EXPECT_EQ(get("/engine.json").status, 401);
  const auto with_key = client();
  with_key->set_header("Authorization", "Bearer secret");
  const auto response = with_key->get("/engine.json");
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 200);
}

TEST_F(LiveViewTest, AnswersAfterTheEngineShutDown) {
  start();
  engine_->shutdown(0.0);
  EXPECT_EQ(get("/engine.json").status, 200);
}

}  // namespace
}  // namespace fovea::server
