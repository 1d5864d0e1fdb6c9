// --stream-interval: how many tokens the events of a stream hold, and that what they say is the same.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

class StreamIntervalTest : public ServerTest {
 protected:
  void start_with(std::int32_t interval, FakeEngine::Options engine = {}) {
    ServerOptions options;
    options.service.stream_interval = interval;
    start(std::move(engine), options);
  }
  // What each chunk of the choice says, those that say nothing left out.
  std::vector<std::string> texts(const std::string& path, const std::string& body, std::int32_t choice = 0) {
    std::vector<std::string> found;
    for (const std::string& data : stream(path, body)) {
      if (data == "[DONE]") continue;
      const json chunk = json::parse(data);
      if (chunk.contains("error")) {
        found.emplace_back("error");
        continue;
      }
      const json& one = chunk["choices"][0];
      if (one["index"] != choice) continue;
      const std::string text =
          one.contains("text") ? one["text"].get<std::string>() : one["delta"].value("content", std::string());
      if (!text.empty()) found.push_back(text);
    }
    return found;
  }
};

using Texts = std::vector<std::string>;

std::string completion(const std::string& more = "") {
  return R"({"prompt":"abcdefgh","max_tokens":100,"stream":true)" + more + "}";
}

TEST_F(StreamIntervalTest, HoldsSoManyTokensAfterTheFirst) {
  start_with(3);
  EXPECT_EQ(texts("/v1/completions", completion()), (Texts{"a", "bcd", "efg", "h"}));
  EXPECT_EQ(texts("/v1/completions", completion(R"(,"n":2)"), 1), (Texts{"a", "bcd", "efg", "h"}));
  EXPECT_EQ(texts("/v1/completions", R"({"prompt":"a","max_tokens":1,"stream":true})"), (Texts{"a"}));
  const std::string chat = R"({"messages":[{"role":"user","content":"abcde"}],"stream":true})";
  EXPECT_EQ(texts("/v1/chat/completions", chat), (Texts{"a", "bcd", "e"}));
  const auto events = stream("/v1/chat/completions", chat);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[3])["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[4], "[DONE]");
}

TEST_F(StreamIntervalTest, SendsTheFirstTokenAtOnce) {
  FakeEngine::Options engine;
  engine.token_time = std::chrono::milliseconds(20);
  engine.endless = true;
  start_with(1'000'000, std::move(engine));
  RawSocket socket(server_->port());
  socket.send(raw_post("/v1/completions", R"({"prompt":"abc","max_tokens":4000,"stream":true})"));
  EXPECT_TRUE(socket.read_until("\"text\":\"a\""));
  EXPECT_EQ(socket.received().find("\"text\":\"b"), std::string::npos);
}

TEST_F(StreamIntervalTest, IdsAndLogprobsGoWithTheirTokens) {
  start_with(4);
  std::vector<int> counts;
  for (const std::string& data : stream("/v1/completions", completion(R"(,"logprobs":1,"return_token_ids":true)"))) {
    if (data == "[DONE]") continue;
    const json choice = json::parse(data)["choices"][0];
    counts.push_back(static_cast<int>(choice["token_ids"].size()));
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), choice["token_ids"].size());
    EXPECT_EQ(choice["text"].get<std::string>().size(), choice["token_ids"].size());
  }
  EXPECT_EQ(counts, (std::vector<int>{1, 4, 3}));
}

TEST_F(StreamIntervalTest, WhatIsHeldComesBeforeAnError) {
  FakeEngine::Options engine;
  engine.fail_after_tokens = 3;
  engine.token_time = std::chrono::milliseconds(5);
  start_with(10, std::move(engine));
  EXPECT_EQ(texts("/v1/completions", completion()), (Texts{"a", "bc", "error"}));
}

// Reasoning, calls, and the APIs whose streams are items: fewer events, which say the same.
TEST_F(StreamIntervalTest, EveryApiSaysTheSameInFewerEvents) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"now"}}])";
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":90)";
  struct Said {
    std::string reasoning, content, arguments, responses, messages;
    json usage;
    std::size_t events = 0;
    bool operator==(const Said& other) const {
      return reasoning == other.reasoning && content == other.content && arguments == other.arguments &&
             responses == other.responses && messages == other.messages && usage == other.usage;
    }
  };
  std::vector<Said> said;
  for (const std::int32_t interval : {1, 4}) {
    FakeEngine::Options engine;
    engine.chat_template = "{{ tools }}<tool_call></think>";
    engine.answer =
        "<think>Hm, so.</think>Yes.<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [1, 2, 3]}}</tool_call>";
    start_with(interval, std::move(engine));
    Said& now = said.emplace_back();
    for (const std::string& data :
         stream("/v1/chat/completions", chat + tools + R"(,"stream_options":{"include_usage":true}})")) {
      ++now.events;
      if (data == "[DONE]") continue;
      const json chunk = json::parse(data);
      if (chunk["choices"].empty()) {
        now.usage = chunk["usage"];
        continue;
      }
      const json& delta = chunk["choices"][0]["delta"];
      if (delta.contains("reasoning")) now.reasoning += delta["reasoning"].get<std::string>();
      if (delta.contains("content") && delta["content"].is_string()) now.content += delta["content"].get<std::string>();
      if (delta.contains("tool_calls")) {
        now.arguments += delta["tool_calls"][0]["function"].value("arguments", std::string());
      }
    }
    for (const std::string& data : stream("/v1/responses", R"({"input":"hi","stream":true})")) {
      ++now.events;
      const json event = json::parse(data);
      if (event["type"] == "response.output_text.delta") now.responses += event["delta"].get<std::string>();
    }
    for (const std::string& data :
         stream("/v1/messages", R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"stream":true})")) {
      ++now.events;
      const json event = json::parse(data);
      if (event["type"] == "content_block_delta") now.messages += event["delta"].value("text", std::string());
    }
    TearDown();
  }
  EXPECT_TRUE(said[0] == said[1]) << said[1].usage << said[1].content << said[1].responses << said[1].messages;
  EXPECT_EQ(said[0].reasoning, "Hm, so.");
  EXPECT_EQ(said[0].content, "Yes.");
  EXPECT_EQ(said[0].arguments, "{\"a\": [1, 2, 3]}");
  EXPECT_TRUE(said[0].responses.starts_with("Yes.")) << said[0].responses;
  EXPECT_TRUE(said[0].messages.starts_with("Yes.")) << said[0].messages;
  EXPECT_GT(said[0].usage["completion_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_LT(said[1].events, said[0].events / 2);
}

}  // namespace
}  // namespace fovea::server
