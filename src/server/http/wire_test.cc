// HTTP as hostile or unlucky clients speak it, over real sockets.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using WireTest = ServerTest;

const char kSlowChat[] = R"({"messages":[{"role":"user","content":"abcdefgh"}],"stream":true,"max_tokens":100000})";

FakeEngine::Options slow_endless() {
  FakeEngine::Options options;
  options.token_time = std::chrono::milliseconds(2);
  options.max_context = 1 << 20;
  options.endless = true;
  return options;
}

TEST_F(WireTest, ReadsARequestThatComesByteByByte) {
  start();
  RawSocket socket(server_->port());
  for (const char c : raw_post("/v1/completions", R"({"prompt":"hello"})")) {
    ASSERT_TRUE(socket.send(std::string_view(&c, 1)));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ASSERT_TRUE(socket.read_until("\"text\":\"hello\"")) << socket.received();
  EXPECT_EQ(socket.received().substr(0, 15), "HTTP/1.1 200 OK");
}

TEST_F(WireTest, ReadsAHeaderSplitInTheMiddleOfALine) {
  start();
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send("GET /hea"));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_TRUE(socket.send("lth HTTP/1.1\r\nHo"));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_TRUE(socket.send("st: localhost\r\n\r\n"));
  EXPECT_TRUE(socket.read_until("{\"status\":\"ok\"}"));
}

TEST_F(WireTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(raw_post("/v1/completions", R"({"prompt":"one"})") +
                          raw_post("/v1/completions", R"({"prompt":"two"})") +
                          "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  ASSERT_TRUE(socket.read_to_end()) << socket.received();
  const std::size_t one = socket.received().find("\"text\":\"one\"");
  const std::size_t two = socket.received().find("\"text\":\"two\"");
  const std::size_t version = socket.received().find("{\"version\":");
  ASSERT_NE(version, std::string::npos) << socket.received();
  EXPECT_LT(one, two);
  EXPECT_LT(two, version);
}

TEST_F(WireTest, KeepsTheConnectionForTheNextRequest) {
  start();
  auto one = client();
  for (int i = 0; i < 20; ++i) {
    auto response = one->post("/v1/completions", R"({"prompt":"again"})");
    ASSERT_TRUE(response.ok()) << response.status().to_string();
    EXPECT_EQ(response->status, 200);
  }
  EXPECT_EQ(server_->http().connections(), 1);
}

TEST_F(WireTest, KeepsSilentStreamsAliveWhereTheirApiCanTell) {
  FakeEngine::Options engine;
  engine.token_time = std::chrono::milliseconds(400);  // as while a long prompt is read
  ServerOptions options;
  options.http.keep_alive_seconds = 0.05;
  start(engine, options);
  const auto ask = [&](const std::string& path, const std::string& body) {
    RawSocket socket(server_->port());
    EXPECT_TRUE(socket.send(raw_post(path, body, "Connection: close\r\n")));
    EXPECT_TRUE(socket.read_to_end());
    return socket.received();
  };
  const std::string responses = ask("/v1/responses", R"({"input":"a","stream":true})");
  EXPECT_NE(responses.find("\r\ne\r\n: keep-alive\n\n\r\n"), std::string::npos) << responses;  // a chunk of its own
  EXPECT_LT(responses.find(": keep-alive"), responses.find("response.output_text.delta"));
  EXPECT_NE(responses.find("response.completed"), std::string::npos);
  const std::string messages =
      ask("/v1/messages", R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,"stream":true})");
  EXPECT_NE(messages.find("event: ping\ndata: {\"type\":\"ping\"}\n\n", messages.find("event: ping") + 1),
            std::string::npos);
  const std::string chat = ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
  EXPECT_EQ(chat.find("\n:"), std::string::npos) << chat;
  EXPECT_EQ(ask("/v1/responses", R"({"input":"a"})").find("keep-alive\n"), std::string::npos);
}

TEST_F(WireTest, CancelsWhenTheClientResetsMidStream) {
  start(slow_endless());
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(raw_post("/v1/chat/completions", kSlowChat)));
  ASSERT_TRUE(socket.read_until("\"content\":\"b\""));
  EXPECT_EQ(engine_->stats().running, 1);
  socket.reset();
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
  EXPECT_EQ(engine_->stats().requests_cancelled, 1u);
  EXPECT_EQ(server_->service().metrics().disconnects.value(), 1u);
}

TEST_F(WireTest, CancelsWhenTheClientClosesBeforeAWholeAnswer) {
  start(slow_endless());
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(raw_post("/v1/completions", R"({"prompt":"abc","max_tokens":100000})")));
  ASSERT_TRUE(eventually([&] { return engine_->stats().running == 1; }));
  socket.shut_down_sending();  // a half-close counts as leaving
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
}

TEST_F(WireTest, NoticesALeavingClientBehindPipelinedBytes) {
  start(slow_endless());
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(raw_post("/v1/chat/completions", kSlowChat) + "GET /health HTTP/1.1\r\n"));
  ASSERT_TRUE(socket.read_until("\"content\":\"b\""));
  socket.close();
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
}

TEST_F(WireTest, RefusesABodyThatIsTooLarge) {
  ServerOptions options;
  options.http.max_body_bytes = 1 << 20;
  start({}, options);
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n"));
  const std::string piece(1 << 16, 'x');
  for (int i = 0; i < 1600 && socket.send(piece); ++i) {
  }
  EXPECT_TRUE(socket.read_until("HTTP/1.1 413 ")) << socket.received();
  EXPECT_TRUE(socket.read_until("max-body-mib"));
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(WireTest, RefusesALargeChunkedBodyAndALargeHeader) {
  ServerOptions options;
  options.http.max_body_bytes = 1000;
  start({}, options);
  RawSocket chunked(server_->port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("100\r\n" + std::string(256, 'x') + "\r\n");
  EXPECT_TRUE(chunked.read_until("HTTP/1.1 413 ")) << chunked.received();
  RawSocket header(server_->port());
  header.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + std::string(40000, 'y') + "\r\n\r\n");
  EXPECT_TRUE(header.read_until("HTTP/1.1 431 ")) << header.received();
}

TEST_F(WireTest, ReadsAChunkedBody) {
  start();
  RawSocket socket(server_->port());
  socket.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  socket.send("a\r\n{\"prompt\":\r\n8\r\n\"chunky\"\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_TRUE(socket.read_until("\"text\":\"chunky\"")) << socket.received();
}

// A proxy before us may see another end of such a body: what is behind it here must not become a request.
TEST_F(WireTest, RefusesBodiesOfOtherCodings) {
  start();
  const std::string hidden = "POST /flush_cache HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string body = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", hidden.size(), hidden);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: ";
  for (const char* coding : {"gzip", "xchunked", "identity", "gzip, chunked", "chunked, chunked", "chunked;a=b",
                             "chunked\r\nTransfer-Encoding: chunked"}) {
    for (const std::string& text : {hidden, body}) {
      RawSocket socket(server_->port());
      ASSERT_TRUE(socket.send(head + coding + "\r\n\r\n" + text));
      EXPECT_TRUE(socket.read_to_end()) << coding;
      EXPECT_NE(socket.received().find("HTTP/1.1 400 "), std::string::npos) << coding << socket.received();
      EXPECT_EQ(socket.received().find("HTTP/1.1 ", 5), std::string::npos) << coding << socket.received();
    }
  }
  EXPECT_EQ(engine_->flushes(), 0);
}

TEST_F(WireTest, TakesAnAbsoluteTarget) {
  start();
  RawSocket socket(server_->port());
  socket.send("GET http://localhost:1234/v1/models HTTP/1.1\r\nHost: localhost:1234\r\n\r\n");
  EXPECT_TRUE(socket.read_until("HTTP/1.1 200 ")) << socket.received();
  // Its host is the one that counts.
  for (const auto& [target, status] : {std::pair{"http://rebound.example/v1/models", "403"},
                                       {"http:///v1/models", "400"},
                                       {"http://user@localhost/v1/models", "400"}}) {
    RawSocket other(server_->port());
    other.send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", target));
    EXPECT_TRUE(other.read_to_end());
    EXPECT_EQ(other.received().substr(9, 3), status) << target << other.received();
  }
}

TEST_F(WireTest, WantsOneHost) {
  start();
  for (const char* lines : {"", "Host: localhost\r\nHost: localhost\r\n", "Host: a/b\r\n", "Host: localhost:8x\r\n"}) {
    RawSocket socket(server_->port());
    socket.send(fmt::format("GET /health HTTP/1.1\r\n{}\r\n", lines));
    EXPECT_TRUE(socket.read_to_end());
    EXPECT_EQ(socket.received().substr(0, 13), "HTTP/1.1 400 ") << lines;
    EXPECT_NE(socket.received().find("Host header"), std::string::npos) << lines;
  }
  for (const char* request : {"HTTP/1.1\r\nHost:\r\n", "HTTP/1.1\r\nhost: [::1]:8000\r\n", "HTTP/1.0\r\n"}) {
    RawSocket socket(server_->port());
    socket.send(fmt::format("GET /health {}\r\n", request));
    EXPECT_TRUE(socket.read_until("{\"status\":\"ok\"}")) << request << socket.received();
  }
}

TEST_F(WireTest, OurClientNamesIpv6HostsInBrackets) {
  ServerOptions options;
  options.http.host = "::1";
  options.http.port = 0;
  FakeEngine engine;
  auto server = Server::start(engine, options);
  if (!server.ok()) GTEST_SKIP() << server.status().to_string();  // a machine without IPv6
  auto client = HttpClient::connect(*parse_url(fmt::format("http://[::1]:{}", (*server)->port())), 10.0);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  EXPECT_EQ((*client)->get("/health")->status, 200);
}

TEST_F(WireTest, SaysWhenItAnswered) {
  start();
  const auto date_of = [&](const std::string& request) {
    RawSocket socket(server_->port());
    socket.send(request);
    EXPECT_TRUE(socket.read_until("\r\n\r\n"));
    const std::size_t at = socket.received().find("\r\nDate: ");
    return at == std::string::npos ? "" : socket.received().substr(at + 8, 29);
  };
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const std::string& request :
       {get, raw_post("/v1/completions", R"({"prompt":"a","stream":true})"), get.substr(1)}) {
    const std::time_t before = std::time(nullptr);
    const std::string date = date_of(request);
    const std::time_t after = std::time(nullptr);
    bool right = false;
    for (std::time_t second = before; second <= after; ++second) right = right || date == format_http_date(second);
    EXPECT_TRUE(right) << date;
  }
}

TEST_F(WireTest, AnswersExpectContinue) {
  start();
  RawSocket socket(server_->port());
  const std::string body = R"({"prompt":"late"})";
  socket.send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-Continue\r\nContent-Length: {}\r\n\r\n",
      body.size()));
  ASSERT_TRUE(socket.read_until("100 Continue\r\n\r\n")) << socket.received();
  socket.send(body);
  EXPECT_TRUE(socket.read_until("\"text\":\"late\""));
}

TEST_F(WireTest, RefusesWhatIsNoHttp) {
  start();
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n", "GARBAGE\r\n\r\n",
                            "GET / HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nBad Header : x\r\n\r\n"}) {
    RawSocket socket(server_->port());
    ASSERT_TRUE(socket.send(bytes));
    EXPECT_TRUE(socket.read_until("HTTP/1.1 400 ")) << bytes << socket.received();
    EXPECT_TRUE(socket.read_to_end());
  }
}

TEST_F(WireTest, GivesUpOnARequestThatNeverEnds) {
  ServerOptions options;
  options.http.read_seconds = 0.2;
  start({}, options);
  RawSocket socket(server_->port());
  socket.send("GET /health HTTP/1.1\r\nHost:");
  EXPECT_TRUE(socket.read_to_end(5.0));
  EXPECT_EQ(socket.received(), "");
}

TEST_F(WireTest, ClosesIdleConnections) {
  ServerOptions options;
  options.http.idle_seconds = 0.2;
  start({}, options);
  RawSocket socket(server_->port());
  EXPECT_TRUE(socket.read_to_end(5.0));
  EXPECT_TRUE(eventually([&] { return server_->http().connections() == 0; }));
}

TEST_F(WireTest, CutsASlowReaderWhileOthersGoOn) {
  ServerOptions options;
  options.http.stream_buffer_bytes = 64 << 10;
  FakeEngine::Options engine = slow_endless();
  engine.token_time = std::chrono::microseconds(1);
  start(engine, options);
  RawSocket slow(server_->port(), 4096);
  const std::string endless =
      R"({"messages":[{"role":"user","content":"abc"}],"stream":true,"max_tokens":1000000,"n":8})";
  ASSERT_TRUE(slow.send(raw_post("/v1/chat/completions", endless)));
  // It never reads. The socket's buffers fill, then ours, and the request is cancelled.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(
      stream("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hey"}],"stream":true,"max_tokens":50})")
          .size(),
      52u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }, 20.0));
  EXPECT_EQ(server_->service().metrics().disconnects.value(), 1u);
}

TEST_F(WireTest, HoldsHundredsOfIdleStreams) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int count = limit.rlim_cur >= 1024 ? 400 : 100;
  FakeEngine::Options engine;
  engine.token_time = std::chrono::milliseconds(300);
  engine.max_context = 1 << 20;
  engine.endless = true;
  start(engine);
  std::vector<RawSocket> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.emplace_back(server_->port());
    ASSERT_TRUE(sockets.back().send(raw_post("/v1/chat/completions", kSlowChat)));
  }
  for (RawSocket& socket : sockets) ASSERT_TRUE(socket.read_until("\"content\":\"a\"", 20.0));
  EXPECT_EQ(server_->http().active(), count);
  EXPECT_EQ(get("/health").status, 200);
  for (RawSocket& socket : sockets) socket.reset();
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0 && server_->http().connections() == 0; }, 20.0));
}

TEST_F(WireTest, RefusesConnectionsBeyondTheLimit) {
  ServerOptions options;
  options.http.max_connections = 2;
  start({}, options);
  RawSocket one(server_->port()), two(server_->port());
  ASSERT_TRUE(eventually([&] { return server_->http().connections() == 2; }));
  RawSocket three(server_->port());
  EXPECT_TRUE(three.read_until("HTTP/1.1 503 "));
}

TEST_F(WireTest, ServesHttp10WithoutChunks) {
  start();
  RawSocket socket(server_->port());
  const std::string body = R"({"messages":[{"role":"user","content":"old"}],"stream":true})";
  socket.send(fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  ASSERT_TRUE(socket.read_to_end());
  EXPECT_EQ(socket.received().find("chunked"), std::string::npos);
  EXPECT_NE(socket.received().find("\r\n\r\ndata: {"), std::string::npos) << socket.received();
  EXPECT_TRUE(socket.received().ends_with("data: [DONE]\n\n"));
}

TEST_F(WireTest, HeadHasNoBody) {
  start();
  RawSocket socket(server_->port());
  socket.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(socket.read_to_end());
  EXPECT_TRUE(socket.received().ends_with("\r\n\r\n"));
  EXPECT_NE(socket.received().find("Content-Length: 15"), std::string::npos) << socket.received();
}

TEST_F(WireTest, WorksWithSeveralIoThreads) {
  ServerOptions options;
  options.http.io_threads = 3;
  options.http.handler_threads = 2;
  start({}, options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string word = fmt::format("w{}x{}", t, i);
        const auto events = stream("/v1/completions", fmt::format(R"({{"prompt":"{}","stream":true}})", word));
        EXPECT_EQ(events.size(), word.size() + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(WireTest, DrainsWhatRunsAndRefusesWhatComes) {
  FakeEngine::Options engine;
  engine.token_time = std::chrono::milliseconds(20);
  start(engine);
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(
      raw_post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"0123456789"}],"stream":true})")));
  ASSERT_TRUE(socket.read_until("\"content\":\"1\""));
  auto waiting = client();
  bool clean = false;
  std::thread drain([&] { clean = server_->drain(10.0); });
  ASSERT_TRUE(eventually([&] {
    auto ready = client()->get("/ready");
    return ready.ok() && ready->status == 503;
  }));
  auto refused = waiting->post("/v1/completions", R"({"prompt":"x"})");
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->status, 503);
  EXPECT_TRUE(socket.read_until("data: [DONE]\n\n"));
  drain.join();
  EXPECT_TRUE(clean);
}

TEST_F(WireTest, DrainCancelsAfterItsTime) {
  start(slow_endless());
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send(raw_post("/v1/chat/completions", kSlowChat)));
  ASSERT_TRUE(socket.read_until("\"content\":\"b\""));
  EXPECT_FALSE(server_->drain(0.1));
  EXPECT_TRUE(socket.read_until("data: {\"error\":{\"message\":")) << socket.received();
}

TEST_F(WireTest, SaysWhenThePortIsTaken) {
  start();
  ServerOptions options;
  options.http.port = server_->port();
  FakeEngine other;
  auto second = Server::start(other, options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("--port"), std::string::npos);
  options.http.host = "192.0.2.1";  // nobody's (RFC 5737)
  options.http.port = 0;
  second = Server::start(other, options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("--host"), std::string::npos) << second.status().message();
}

}  // namespace
}  // namespace fovea::server
