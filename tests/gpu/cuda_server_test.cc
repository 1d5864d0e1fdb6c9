// The server over an engine on a CUDA device without a GPU: what clients and probes are told when a kernel's fault
// takes the device away for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/embedded_model.h"
#include "server/http/client.h"
#include "server/server.h"
#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

constexpr const char* kLong = R"({"prompt":"The lamp is","max_tokens":100,"ignore_eos":true})";

class CudaServer : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    if (embedded_needle().empty()) GTEST_SKIP() << "a build without the model";
    host_kernels::install(128, VariantId::kPlain, abi::GateKind::kSilu);
    options_.max_context = 160;
    options_.max_running = 2;
    auto engine = Engine::create(options_);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(*engine);
    server::ServerOptions options;
    options.http.port = 0;
    auto server = server::Server::start(*engine_, options);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }

  std::unique_ptr<server::HttpClient> client() {
    server::Url url;
    url.host = "127.0.0.1";
    url.port = server_->port();
    auto made = server::HttpClient::connect(url, 60.0);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  server::HttpResponse post(const std::string& body) {
    auto response = client()->post("/v1/completions", body);
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? std::move(*response) : server::HttpResponse();
  }
  server::HttpResponse get(const std::string& path) {
    auto response = client()->get(path);
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? std::move(*response) : server::HttpResponse();
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<server::Server> server_;
};

// Two run, two wait; 700 is an illegal address, which every later call answers too.
TEST_F(CudaServer, ALostDeviceEndsAllRequestsAndRefusesMore) {
  EXPECT_EQ(get("/health").status, 200);
  fake::state().once = {{"cuEventSynchronize", {fake::state().calls["cuEventSynchronize"] + 20, 700}}};
  std::vector<server::HttpResponse> answers(4);
  {
    std::vector<std::jthread> clients;
    for (server::HttpResponse& answer : answers) clients.emplace_back([&] { answer = post(kLong); });
  }
  for (const server::HttpResponse& answer : answers) {
    EXPECT_THAT(answer.status, ::testing::AnyOf(500, 503)) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  for (const char* const probe : {"/health", "/ready"}) {
    const server::HttpResponse answer = get(probe);
    EXPECT_EQ(answer.status, 503) << probe;
    EXPECT_THAT(answer.body, HasSubstr("restart the server")) << probe;
    EXPECT_THAT(answer.body, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")) << probe;
  }
  EXPECT_THAT(get("/metrics").body, HasSubstr("fovea_healthy 0"));
  const server::HttpResponse refused = post(kLong);
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("must be restarted"));
  // Told behind the answers.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  EngineStats stats = engine_->stats();
  while (stats.requests_failed < 4 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    stats = engine_->stats();
  }
  EXPECT_EQ(stats.requests_failed, 4u);
  EXPECT_EQ(stats.running + stats.queued, 0);
}

// An error that does not last ends what it hit, and nothing else.
TEST_F(CudaServer, AnErrorOfOneCallLeavesTheServerHealthy) {
  fake::state().once = {{"cuEventSynchronize", {fake::state().calls["cuEventSynchronize"] + 20, 13}}};
  const server::HttpResponse answer = post(kLong);
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_EQ(post(kLong).status, 200);
}

}  // namespace
}  // namespace fovea
