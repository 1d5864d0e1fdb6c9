// Tools through the chat API, over a fake engine that answers what it is told: fields, templates, shapes, streams.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

constexpr const char* kTools = R"(,"tools":[{"type":"function","function":{"name":"get_weather","description":"d",
  "parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}},"required":["z"]}}},
  {"type":"function","function":{"name":"now"}}])";
constexpr const char* kAnswer =
    "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"z\": \"Bonn\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

class ToolsTest : public ServerTest {
 protected:
  void start_with(std::string answer, const char* chat_template = "{{ tools }}<tool_call>") {
    FakeEngine::Options engine;
    engine.answer = std::move(answer);
    engine.chat_template = chat_template;
    start(engine);
  }
  static std::string body(const std::string& more) {
    return R"({"messages":[{"role":"user","content":"hi"}])" + more + "}";
  }
  json choice(const std::string& more) {
    const HttpResponse sent = post("/v1/chat/completions", body(more));
    EXPECT_EQ(sent.status, 200) << sent.body;
    return sent.status == 200 ? json::parse(sent.body)["choices"][0] : json();
  }
  json error(const std::string& request) {
    const HttpResponse sent = post("/v1/chat/completions", request);
    EXPECT_EQ(sent.status, 400) << request << sent.body;
    return json::parse(sent.body)["error"];
  }
};

TEST_F(ToolsTest, AnswersWithCalls) {
  start_with(kAnswer);
  const json one = choice(kTools);
  EXPECT_EQ(one["finish_reason"], "tool_calls");
  EXPECT_EQ(one["message"]["content"], "I look.");
  const json& calls = one["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"], (json{{"name", "get_weather"}, {"arguments", "{\"z\": \"Bonn\"}"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_EQ(calls[0]["id"].get<std::string>().substr(0, 5), "call_");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  // The template sees the tools as they came, keys in their order.
  EXPECT_NE(engine_->last_template_json().find(R"("properties":{"z":{"type":"string"},"a")"), std::string::npos);
  EXPECT_FALSE(engine_->last_request().sampling.skip_special_tokens);
  EXPECT_EQ(engine_->last_grammar().text, "");
  EXPECT_EQ(choice(std::string(kTools) + R"(,"parallel_tool_calls":false)")["message"]["tool_calls"].size(), 1u);
}

TEST_F(ToolsTest, StreamsCalls) {
  start_with(kAnswer);
  const auto events = stream("/v1/chat/completions", body(std::string(kTools) + R"(,"stream":true,"n":2)"));
  std::map<int, std::string> contents, finishes;
  std::map<std::pair<int, int>, json> calls;
  std::map<int, int> roles;
  std::set<std::string> ids;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json one = json::parse(events[i])["choices"][0];
    const int index = one["index"];
    const json& delta = one["delta"];
    roles[index] += delta.contains("role") ? 1 : 0;
    if (!one["finish_reason"].is_null()) finishes[index] += one["finish_reason"].get<std::string>();
    if (delta.contains("content")) contents[index] += delta["content"].get<std::string>();
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1u);
    const json& call = delta["tool_calls"][0];
    json& whole = calls[{index, call["index"]}];
    if (whole.is_null()) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["arguments"], "");
      ids.insert(call["id"]);
      whole = call["function"];
    } else {
      EXPECT_EQ(call.size(), 2u);
      EXPECT_EQ(call["function"].size(), 1u);
      whole["arguments"] = whole["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(ids.size(), 4u);
  for (int index = 0; index < 2; ++index) {
    EXPECT_EQ(roles[index], 1);
    EXPECT_EQ(contents[index], "I look.");
    EXPECT_EQ(finishes[index], "tool_calls");
    EXPECT_EQ((calls[{index, 0}]), (json{{"name", "get_weather"}, {"arguments", "{\"z\": \"Bonn\"}"}}));
    EXPECT_EQ((calls[{index, 1}]), (json{{"name", "now"}, {"arguments", "{}"}}));
  }
}

TEST_F(ToolsTest, StreamsACallByteForByte) {
  start_with(R"(<tool_call>{"name":"now","arguments":{}}</tool_call>)");
  const auto events = stream("/v1/chat/completions", body(std::string(kTools) + R"(,"stream":true)"));
  ASSERT_EQ(events.size(), 5u);
  const auto choice_of = [&](int i) { return events[i].substr(events[i].find("\"choices\":")); };
  const std::string id = json::parse(events[0])["choices"][0]["delta"]["tool_calls"][0]["id"];
  EXPECT_EQ(choice_of(0),
            R"("choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":")" + id +
                R"(","type":"function","function":{"name":"now","arguments":""}}]},)" +
                R"("logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(choice_of(1), R"("choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},)"
                          R"("logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(choice_of(3), R"("choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]})");
}

TEST_F(ToolsTest, SendsLogprobsAndTokensOfWhatItHoldsBack) {
  const std::string answer = R"(<tool_call>{"name":"now"}</tool_call>)";
  start_with(answer);
  const auto events = stream("/v1/chat/completions",
                             body(std::string(kTools) + R"(,"stream":true,"logprobs":true,"return_token_ids":true)"));
  std::size_t logprobs = 0, tokens = 0, prompts = 0;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    const json& one = chunk["choices"][0];
    prompts += chunk.contains("prompt_token_ids") ? 1 : 0;
    if (!one["logprobs"].is_null()) logprobs += one["logprobs"]["content"].size();
    if (one.contains("token_ids")) tokens += one["token_ids"].size();
  }
  EXPECT_EQ(logprobs, answer.size());
  EXPECT_EQ(tokens, answer.size());
  EXPECT_EQ(prompts, 1u);
}

TEST_F(ToolsTest, LeavesContentWhereThereIsNoCall) {
  const std::string answer = "<tool_call> is how calls begin: {\"name\": \"now\"} ";
  start_with(answer);
  for (const std::string& more : {std::string(kTools), std::string()}) {
    const json one = choice(more);
    EXPECT_EQ(one["message"], (json{{"role", "assistant"}, {"content", answer}, {"refusal", nullptr}}));
    EXPECT_EQ(one["finish_reason"], "stop");
  }
  std::string streamed;
  const auto events = stream("/v1/chat/completions", body(std::string(kTools) + R"(,"stream":true)"));
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json delta = json::parse(events[i])["choices"][0]["delta"];
    if (delta.contains("content")) streamed += delta["content"].get<std::string>();
  }
  EXPECT_EQ(streamed, answer);
}

TEST_F(ToolsTest, KeepsCallsAsTextWhereNoneAreAskedFor) {
  start_with(kAnswer);
  const json one = choice(std::string(kTools) + R"(,"tool_choice":"none")");
  EXPECT_EQ(one["message"]["content"], kAnswer);
  EXPECT_EQ(engine_->last_template_json(), "");
  EXPECT_EQ(choice(R"(,"tools":[],"tool_choice":"auto","parallel_tool_calls":true)")["message"]["content"], kAnswer);
}

TEST_F(ToolsTest, ACutCallKeepsWhatCame) {
  start_with(R"(<tool_call>{"name":"now","arguments":{"a":1}}</tool_call>)");
  const json one = choice(std::string(kTools) + R"(,"max_tokens":42)");
  EXPECT_EQ(one["finish_reason"], "length");
  EXPECT_EQ(one["message"]["tool_calls"][0]["function"]["arguments"], R"({"a":)");
}

TEST_F(ToolsTest, CustomToolsTakeText) {
  constexpr const char* kCustom =
      R"(,"tools":[{"type":"custom","custom":{"name":"apply_patch","description":"d","format":
    {"type":"grammar","grammar":{"syntax":"lark","definition":"start: A"}}}},{"type":"function","function":{"name":"now"}}])";
  start_with(R"(<tool_call>{"name":"now","arguments":{}}</tool_call>)"
             R"(<tool_call>{"name":"apply_patch","arguments":{"input": "*** \"\u00fc\"\n"}}</tool_call>)"
             R"(<tool_call>{"name":"apply_patch","arguments":{"text":"x"}}</tool_call>)");
  const json calls = choice(kCustom)["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0]["function"], (json{{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_EQ(calls[1]["type"], "custom");
  EXPECT_EQ(calls[1]["custom"], (json{{"name", "apply_patch"}, {"input", "*** \"\u00fc\"\n"}}));
  EXPECT_FALSE(calls[1].contains("function"));
  EXPECT_EQ(calls[2]["custom"]["input"], R"({"text":"x"})");  // not as it was asked for: all of it
  const json shown = json::parse(engine_->last_template_json())["tools"];
  EXPECT_EQ(shown[0]["function"]["parameters"]["required"], json{"input"});
  EXPECT_EQ(shown[0]["function"]["description"], "d\n\nThe input is text by this lark grammar:\nstart: A");
  EXPECT_EQ(shown[1]["function"]["name"], "now");

  std::map<int, json> streamed;
  const auto events = stream("/v1/chat/completions", body(std::string(kCustom) + R"(,"stream":true)"));
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json delta = json::parse(events[i])["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    const json& call = delta["tool_calls"][0];
    json& whole = streamed[call["index"]];
    if (whole.is_null()) {
      whole = call;
    } else if (call.contains("custom")) {
      EXPECT_NE(call["custom"]["input"], "");
      whole["custom"]["input"] =
          whole["custom"]["input"].get<std::string>() + call["custom"]["input"].get<std::string>();
    }
  }
  ASSERT_EQ(streamed.size(), 3u);
  EXPECT_EQ(streamed[1]["custom"], calls[1]["custom"]);
  EXPECT_EQ(streamed[2]["custom"], calls[2]["custom"]);
  EXPECT_EQ(streamed[1]["type"], "custom");

  const HttpResponse sent = post("/v1/chat/completions", R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c",
    "type":"custom","custom":{"name":"apply_patch","input":"a \"b\""}}]},{"role":"tool","tool_call_id":"c","content":"x"}]})");
  ASSERT_EQ(sent.status, 200) << sent.body;
  EXPECT_EQ(json::parse(engine_->last_messages()[0].extra_json)["tool_calls"][0]["function"],
            (json{{"name", "apply_patch"}, {"arguments", {{"input", "a \"b\""}}}}));
  choice(std::string(kCustom) + R"(,"tool_choice":{"type":"custom","custom":{"name":"apply_patch"}})");
  EXPECT_EQ(json::parse(engine_->last_grammar().text)["format"]["tags"].size(), 1u);
}

TEST_F(ToolsTest, AllowsSomeOfTheTools) {
  start_with(R"(<tool_call>{"name":"get_weather","arguments":{}}</tool_call>)");
  const auto allow = [](const std::string& mode, const std::string& names) {
    return std::string(kTools) + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" + mode +
           R"(","tools":[)" + names + "]}}";
  };
  const std::string now = R"({"type":"function","function":{"name":"now"}})";
  EXPECT_FALSE(choice(allow("auto", now))["message"].contains("tool_calls"));  // of one that is not allowed
  EXPECT_EQ(json::parse(engine_->last_template_json())["tools"].size(), 2u);   // shown all the same
  EXPECT_EQ(engine_->last_grammar().text, "");
  choice(allow("required", now));
  const json tag = json::parse(engine_->last_grammar().text)["format"];
  ASSERT_EQ(tag["tags"].size(), 1u);
  EXPECT_EQ(tag["tags"][0]["begin"], "<tool_call>\n{\"name\": \"now\", \"arguments\": ");
  for (const std::string& wrong : {allow("required", ""), allow("some", now),
                                   allow("auto", R"({"type":"function","function":{"name":"other"}})")}) {
    EXPECT_EQ(error(body(wrong))["param"], "tool_choice") << wrong;
  }
}

TEST_F(ToolsTest, StrictToolsHoldToTheirSchemaWhereTheModelChooses) {
  start_with("<think>\nHm.\n</think>\n\nYes.", "{{ tools }}<tool_call></think>");
  const json message = choice(R"(,"tools":[
    {"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object","not":{}}}}])")["message"];
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["reasoning"], "Hm.");
  const json tag = json::parse(engine_->last_grammar().text)["format"];
  EXPECT_EQ(tag["type"], "triggered_tags");
  EXPECT_EQ(tag["triggers"], json{"<tool_call>"});
  EXPECT_EQ(tag["at_least_one"], false);
  EXPECT_EQ(tag["tags"][0]["content"]["json_schema"]["properties"]["a"]["type"], "integer");
  EXPECT_EQ(tag["tags"][1]["content"]["json_schema"], (json{{"type", "object"}}));
}

TEST_F(ToolsTest, ToolsThatAreNotStrictLeaveTheModelFree) {
  start_with("Yes.");
  choice(std::string(kTools) + R"(,"tool_choice":"auto")");
  EXPECT_EQ(engine_->last_grammar().text, "");
}

TEST_F(ToolsTest, ForcesCallsByAGrammar) {
  start_with(R"(<tool_call>{"name":"now","arguments":{}}</tool_call>)");
  choice(std::string(kTools) + R"(,"tool_choice":"required")");
  EXPECT_EQ(engine_->last_grammar().kind, GrammarKind::kStructuralTag);
  json tag = json::parse(engine_->last_grammar().text)["format"];
  EXPECT_EQ(tag["tags"].size(), 2u);
  EXPECT_EQ(tag["tags"][0]["begin"], "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
  EXPECT_EQ(tag["tags"][0]["end"], "}\n</tool_call>");
  EXPECT_EQ(tag["tags"][1]["content"]["json_schema"], (json{{"type", "object"}, {"properties", json::object()}}));
  EXPECT_EQ(tag["stop_after_first"], false);
  choice(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  tag = json::parse(engine_->last_grammar().text)["format"];
  ASSERT_EQ(tag["tags"].size(), 1u);
  EXPECT_EQ(tag["tags"][0]["begin"], "<tool_call>\n{\"name\": \"now\", \"arguments\": ");
  EXPECT_EQ(tag["stop_after_first"], true);
  // Schemas that cannot be kept to are refused.
  EXPECT_EQ(error(body(R"(,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":
      {"type":"refused"}}}])"))["param"],
            "tools");
}

TEST_F(ToolsTest, ShowsCallsAndResultsToTheTemplate) {
  start_with("done");
  const HttpResponse sent = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"now",
    "arguments":"{\"z\":1,\"a\":2}"}},{"id":"call_2","type":"function","function":{"name":"now","arguments":""}}]},
    {"role":"tool","tool_call_id":"call_1","name":"now","content":"noon"}]})");
  ASSERT_EQ(sent.status, 200) << sent.body;
  const auto messages = engine_->last_messages();
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].extra_json, "");
  EXPECT_EQ(messages[1].content, "");
  EXPECT_EQ(messages[1].extra_json,
            R"({"tool_calls":[{"id":"call_1","type":"function","function":{"name":"now","arguments":{"z":1,"a":2}}},)"
            R"({"id":"call_2","type":"function","function":{"name":"now","arguments":{}}}]})");
  EXPECT_EQ(messages[2].role, "tool");
  EXPECT_EQ(messages[2].content, "noon");
  EXPECT_EQ(messages[2].extra_json, R"({"tool_call_id":"call_1","name":"now"})");
}

TEST_F(ToolsTest, GivesMistralTheIdsItsTemplateTakes) {
  start_with(R"([TOOL_CALLS] [{"name": "now", "arguments": {}}])", "{{ tools }}[TOOL_CALLS]");
  const json call = choice(kTools)["message"]["tool_calls"][0];
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(call["function"]["name"], "now");
}

TEST_F(ToolsTest, RefusesByName) {
  start_with("x");
  const auto tools = [&](const std::string& list) { return body(",\"tools\":" + list); };
  for (const char* wrong :
       {R"("x")", R"([1])", R"([{"type":"function"}])", R"([{"type":"function","function":{}}])",
        R"([{"type":"function","function":{"name":""}}])", R"([{"type":"function","function":{"name":"a b"}}])",
        R"([{"type":"function","function":{"name":"f","parameters":[]}}])",
        R"([{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}])",
        R"([{"type":"function","function":{"name":"f","parameters":{"enum":[1]}}}])",
        R"([{"type":"custom","custom":{}}])",
        R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"}) {
    EXPECT_EQ(error(tools(wrong))["param"], "tools") << wrong;
  }
  for (const char* wrong : {R"("always")", R"({"type":"function"})", "7",
                            R"({"type":"function","function":{"name":"other"}})", R"({"type":"allowed_tools"})"}) {
    EXPECT_EQ(error(body(std::string(kTools) + ",\"tool_choice\":" + wrong))["param"], "tool_choice") << wrong;
  }
  EXPECT_EQ(error(body(R"(,"tool_choice":"required")"))["param"], "tool_choice");
  EXPECT_EQ(error(body(R"(,"parallel_tool_calls":1)"))["param"], "parallel_tool_calls");
  EXPECT_EQ(error(body(std::string(kTools) + R"(,"structured_outputs":{"regex":"x"})"))["param"],
            "structured_outputs.regex");
  const auto message = [&](const std::string& text) { return R"({"messages":[)" + text + "]}"; };
  EXPECT_EQ(error(message(R"({"role":"tool","content":"x"})"))["param"], "messages[0].tool_call_id");
  EXPECT_EQ(
      error(message(R"({"role":"assistant","content":"","function_call":{"name":"f","arguments":"{}"}})"))["param"],
      "messages[0].function_call");
  EXPECT_EQ(error(message(R"({"role":"user","contents":"x"})"))["param"], "messages[0].content");
  for (const char* wrong : {R"("x")", R"([1])", R"([{"id":"a","function":{"name":"f"}}])",
                            R"([{"id":"a","function":{"name":"f","arguments":"[]"}}])",
                            R"([{"id":"a","function":{"name":"f","arguments":"{"}}])"}) {
    EXPECT_EQ(error(message(std::string(R"({"role":"assistant","tool_calls":)") + wrong + "}"))["param"],
              "messages[0].tool_calls")
        << wrong;
  }
}

TEST_F(ToolsTest, SaysThatTheTemplateTakesNone) {
  start_with("x", "{{ messages }}");
  const json refused = error(body(kTools));
  EXPECT_EQ(refused["param"], "tools");
  EXPECT_NE(refused["message"].get<std::string>().find("template"), std::string::npos);
  EXPECT_EQ(error(R"({"messages":[{"role":"tool","tool_call_id":"a","content":"x"}]})")["param"], "messages");
  EXPECT_EQ(choice(std::string(kTools) + R"(,"tool_choice":"none")")["message"]["content"], "x");
}

}  // namespace
}  // namespace fovea::server
