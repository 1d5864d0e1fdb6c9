// A server over a FakeEngine on a free port, and shorthands, for the server's tests. Include <gtest/gtest.h> first.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http/client.h"
#include "server/server.h"
#include "server/testing/fake_engine.h"
#include "server/testing/raw_socket.h"

namespace fovea::server {

inline bool eventually(const std::function<bool()>& condition, double seconds = 5.0) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1e3));
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class ServerTest : public ::testing::Test {
 protected:
  void start(FakeEngine::Options engine = {}, ServerOptions options = {}) {
    engine_ = std::make_unique<FakeEngine>(std::move(engine));
    options.http.port = 0;
    auto server = Server::start(*engine_, options);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }
  void TearDown() override {
    server_.reset();
    engine_.reset();
  }

  std::unique_ptr<HttpClient> client() {
    Url url;
    url.host = "127.0.0.1";
    url.port = server_->port();
    auto made = HttpClient::connect(url, 20.0);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  HttpResponse post(const std::string& path, const std::string& body) {
    auto response = client()->post(path, body);
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? std::move(*response) : HttpResponse();
  }
  HttpResponse get(const std::string& path) {
    auto response = client()->get(path);
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? std::move(*response) : HttpResponse();
  }
  // The events of a stream, each without "data: ".
  std::vector<std::string> stream(const std::string& path, const std::string& body) {
    std::vector<std::string> events;
    const Status status = client()->post_stream(
        path, body,
        [&](std::string_view data) {
          events.emplace_back(data);
          return true;
        },
        nullptr);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return events;
  }
  static std::string raw_post(const std::string& path, const std::string& body, const std::string& more = "") {
    return fmt::format(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
        body.size(), more, body);
  }

  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace fovea::server
