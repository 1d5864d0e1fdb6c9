// Anthropic's Messages API over a fake engine that answers what it is told: blocks, tools, events, errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

constexpr const char* kTemplate = "{{ tools }}<tool_call></think>";
constexpr const char* kTools = R"("tools":[{"name":"read","description":"d","cache_control":{"type":"ephemeral"},
  "input_schema":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}},
  {"type":"custom","name":"now","input_schema":{"type":"object"}}])";
constexpr const char* kAnswer =
    "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"read\", \"arguments\": {\"z\": "
    "\"x\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

class MessagesTest : public ServerTest {
 protected:
  void start_with(std::string answer, const char* chat_template = kTemplate) {
    FakeEngine::Options engine;
    engine.answer = std::move(answer);
    engine.chat_template = chat_template;
    start(engine);
  }
  static std::string body(const std::string& more,
                          const std::string& messages = R"([{"role":"user","content":"hi"}])") {
    return R"({"model":"fake","max_tokens":1000,"messages":)" + messages + (more.empty() ? "" : ",") + more + "}";
  }
  json ask(const std::string& request, int status = 200) {
    const HttpResponse sent = post("/v1/messages?beta=true", request);
    EXPECT_EQ(sent.status, status) << request << sent.body;
    return json::parse(sent.body);
  }
  std::string refused(const std::string& request) {
    const json error = ask(request, 400);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_FALSE(error["request_id"].get<std::string>().empty());
    return error["error"]["message"];
  }
};

TEST_F(MessagesTest, AnswersWithBlocks) {
  start_with(kAnswer);
  const json message = ask(body(kTools));
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  const json& content = message["content"];
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(content[0]["thinking"], "Hm.");
  EXPECT_FALSE(content[0]["signature"].get<std::string>().empty());
  EXPECT_EQ(content[1], (json{{"type", "text"}, {"text", "I look."}}));
  EXPECT_EQ(content[2]["name"], "read");
  EXPECT_EQ(content[2]["input"], (json{{"z", "x"}}));
  EXPECT_EQ(content[3]["input"], json::object());
  EXPECT_EQ(content[3]["id"].get<std::string>().substr(0, 6), "toolu_");
  EXPECT_EQ(message["usage"]["input_tokens"], 2);
  EXPECT_EQ(message["usage"]["output_tokens"], std::string(kAnswer).size());
  EXPECT_NE(engine_->last_template_json().find(R"("properties":{"z":{"type":"string"},"a")"), std::string::npos);
  EXPECT_EQ(
      ask(body(std::string(kTools) + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})"))["content"]
          .size(),
      3u);
}

TEST_F(MessagesTest, StreamsTheSameBlocks) {
  start_with(kAnswer);
  json blocks = json::array(), ends;
  std::vector<std::string> types;
  bool open = false;
  for (const std::string& data : stream("/v1/messages", body(std::string(kTools) + R"(,"stream":true)"))) {
    const json event = json::parse(data);
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(event["index"], blocks.size());
      open = true;
      blocks.push_back(event["content_block"]);
      if (blocks.back()["type"] == "tool_use") blocks.back()["input"] = "";
    } else if (type == "content_block_delta") {
      ASSERT_TRUE(open);
      const json& delta = event["delta"];
      json& block = blocks.back();
      for (const auto& [name, member] : {std::pair("text", "text"), std::pair("thinking", "thinking"),
                                         std::pair("signature", "signature"), std::pair("partial_json", "input")}) {
        if (delta.contains(name)) block[member] = block[member].get<std::string>() + delta[name].get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open);
      open = false;
      if (blocks.back()["type"] == "tool_use")
        blocks.back()["input"] = json::parse(blocks.back()["input"].get<std::string>());
      blocks.back().erase("id");
    } else if (type == "message_delta") {
      ends = event;
    }
  }
  json whole = ask(body(kTools));
  for (json& block : whole["content"]) block.erase("id");
  EXPECT_EQ(blocks, whole["content"]);
  EXPECT_EQ(ends["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(ends["usage"], whole["usage"]);
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types[1], "ping");
  EXPECT_EQ(types.back(), "message_stop");
}

TEST_F(MessagesTest, ReadsEveryBlock) {
  start_with("ok");
  const json message =
      ask(body(R"("system":[{"type":"text","text":"x-anthropic-billing-header: a1b2"},
    {"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"metadata":{"user_id":"u"},
    "thinking":{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low"},"service_tier":"auto")",
               R"([{"role":"user","content":[{"type":"text","text":"one","provider_specific_fields":null}]},
    {"role":"system","content":"remember"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"x"},
      {"type":"text","text":"two"},{"type":"tool_use","id":"t1","name":"read","input":{"z":1}},
      {"type":"tool_use","id":"t2","name":"now","input":{}}]},
    {"role":"system","content":"between"},
    {"role":"user","content":[{"type":"text","text":"and?"},
      {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r1"}]},
      {"type":"tool_result","tool_use_id":"t2","content":"r2","is_error":true},
      {"type":"document","source":{"type":"text","media_type":"text/plain","data":"doc"}}]}])"));
  EXPECT_EQ(message["content"], (json{{{"type", "text"}, {"text", "ok"}}}));
  EXPECT_EQ(message["stop_reason"], "end_turn");
  std::vector<std::pair<std::string, std::string>> turns;
  for (const ChatMessage& turn : engine_->last_messages()) turns.emplace_back(turn.role, turn.content);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"system", "Be brief."}, {"user", "one\n\n<system>\nremember\n</system>"},
      {"assistant", "two"},    {"tool", "r1"},
      {"tool", "Error: r2"},   {"user", "<system>\nbetween\n</system>\n\nand?\ndoc"}};
  EXPECT_EQ(turns, expected);
  const json extra = json::parse(engine_->last_messages()[2].extra_json);
  EXPECT_EQ(extra["reasoning_content"], "hm");
  EXPECT_EQ(extra["tool_calls"][0]["function"]["arguments"], (json{{"z", 1}}));
  EXPECT_EQ(json::parse(engine_->last_messages()[3].extra_json)["tool_call_id"], "t1");
  EXPECT_EQ(json::parse(engine_->last_template_json()), (json{{"enable_thinking", true}, {"reasoning_effort", "low"}}));
  ask(body("", R"([{"role":"user","content":"Say"},{"role":"assistant","content":"It is"}])"));
  EXPECT_TRUE(engine_->last_messages().back().unfinished);
}

TEST_F(MessagesTest, SaysWhyItStopped) {
  start_with("a long answer");
  EXPECT_EQ(ask(R"({"max_tokens":3,"messages":[{"role":"user","content":"x"}]})")["stop_reason"], "max_tokens");
  EXPECT_EQ(ask(R"({"max_tokens":100000,"messages":[{"role":"user","content":"x"}]})")["stop_reason"], "end_turn");
  ask(body(R"("stop_sequences":["long"],"top_k":3)"));
  EXPECT_EQ(engine_->last_request().sampling.stop, std::vector<std::string>{"long"});
  ask(body(std::string(kTools) + R"(,"tool_choice":{"type":"tool","name":"now"})"));
  EXPECT_NE(engine_->last_grammar().text.find("now"), std::string::npos);
  EXPECT_EQ(engine_->last_grammar().text.find("read"), std::string::npos);
}

TEST_F(MessagesTest, CountsTokens) {
  start_with("x");
  const HttpResponse sent = post("/v1/messages/count_tokens",
                                 R"({"model":"fake","system":"abc","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(sent.status, 200) << sent.body;
  EXPECT_EQ(json::parse(sent.body), (json{{"input_tokens", 5}}));
}

TEST_F(MessagesTest, RefusesByName) {
  start_with("x");
  const auto names = [&](const std::string& request, const std::string& name) {
    const std::string message = refused(request);
    EXPECT_NE(message.find(name), std::string::npos) << request << message;
  };
  names(R"({"messages":[{"role":"user","content":"x"}]})", "max_tokens");
  names(R"({"max_tokens":3})", "messages");
  names(body("", "[]"), "messages");
  names(body("", R"([{"role":"tool","content":"x"}])"), "messages[0].role");
  names(body("", R"([{"role":"user","content":7}])"), "messages[0].content");
  names(body("", R"([{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}])"), "image");
  names(body("", R"([{"role":"user","content":[{"type":"tool_result","content":"x"}]}])"), "tool_use_id");
  names(body("", R"([{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":3}]}])"),
        "tool_use");
  names(body(R"("tools":[{"type":"bash_20250124","name":"bash"}])"), "bash_20250124");
  names(body(R"("tools":[{"name":"a b"}])"), "tools[0]");
  names(body(R"("tool_choice":{"type":"any"})"), "tool_choice");
  names(body(R"("tool_choice":"any")"), "tool_choice");
  names(body(R"("thinking":{"type":"deep"})"), "thinking");
  names(body(R"("output_config":{"format":{"type":"json_schema"}})"), "output_config.format");
  names(body(R"("output_config":{"fromat":{"type":"json_schema"}})"), "output_config.fromat");
  names(body(R"("mcp_servers":[{"type":"url"}])"), "mcp_servers");
  names(body(R"("system":3)"), "system");
  names("{", "");
  EXPECT_EQ(ask(R"({"model":"no","max_tokens":1,"messages":[{"role":"user","content":"x"}]})", 404)["error"]["type"],
            "not_found_error");
}

TEST_F(MessagesTest, FailsInItsOwnShape) {
  FakeEngine::Options engine;
  engine.fail_after_tokens = 1;
  engine.token_time = std::chrono::milliseconds(20);  // the stream has begun by then
  ServerOptions options;
  options.service.api_keys = {"secret"};
  start(engine, options);
  EXPECT_EQ(json::parse(post("/v1/messages", body("")).body)["error"]["type"], "authentication_error");
  RawSocket raw(server_->port());
  raw.send(raw_post("/v1/messages", body(R"("stream":true)"), "x-api-key: secret\r\nConnection: close\r\n"));
  ASSERT_TRUE(raw.read_to_end());
  EXPECT_NE(raw.received().find("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""),
            std::string::npos)
      << raw.received();
  EXPECT_NE(raw.received().find("\r\nrequest-id: "), std::string::npos);
}

}  // namespace
}  // namespace fovea::server
