// The Responses API over a fake engine that answers what it is told: items, tools, events.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/openai/custom_input.h"
#include "server/responses/reasoning_blob.h"
#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

constexpr const char* kTemplate = "{{ tools }}<tool_call></think>";
constexpr const char* kTools = R"("tools":[{"type":"function","name":"now","parameters":null},
  {"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: A"}},
  {"type":"namespace","name":"files","description":"d","tools":[{"type":"function","name":"read","parameters":{"type":"object",
    "properties":{"z":{"type":"string"},"a":{"type":"integer"}}}}]},
  {"type":"web_search"},{"type":"tool_search"},{"type":"local_shell"}])";
constexpr const char* kAnswer =
    "<think>\nHm,\n so.\n</think>\n\nI look.\n"
    "<tool_call>\n{\"name\": \"files__read\", \"arguments\": {\"z\": \"x\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** "
    "Begin\\n\\\"\\u00fc\\ud83d\\ude00\\\"\"}}\n"
    "</tool_call>";

class ResponsesTest : public ServerTest {
 protected:
  void start_with(std::string answer, const char* chat_template = kTemplate) {
    FakeEngine::Options engine;
    engine.answer = std::move(answer);
    engine.chat_template = chat_template;
    start(engine);
  }
  json ask(const std::string& body, int status = 200) {
    const HttpResponse sent = post("/v1/responses", body);
    EXPECT_EQ(sent.status, status) << body << sent.body;
    return json::parse(sent.body);
  }
  std::string refused(const std::string& body) {
    const json error = ask(body, 400)["error"];
    return error["param"].is_string() ? error["param"].get<std::string>() : error["message"].get<std::string>();
  }
  std::vector<json> events(const std::string& body) {
    std::vector<json> out;
    for (const std::string& data : stream("/v1/responses", body)) out.push_back(json::parse(data));
    return out;
  }
};

TEST_F(ResponsesTest, AnswersWithItems) {
  start_with(kAnswer);
  const json response = ask(R"({"model":"fake","input":"hi","store":true,"include":["reasoning.encrypted_content"],)" +
                            std::string(kTools) + "}");
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_EQ(response["tools"].size(), 6u);
  for (const char* name : {"error", "incomplete_details", "previous_response_id", "instructions"}) {
    EXPECT_TRUE(response.contains(name) && response[name].is_null()) << name;
  }
  const json& usage = response["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 5);
  const json& output = response["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], (json{{{"type", "reasoning_text"}, {"text", "Hm,\n so."}}}));
  EXPECT_EQ(open_reasoning(output[0]["encrypted_content"].get<std::string>()), "Hm,\n so.");
  EXPECT_EQ(output[1]["content"][0]["text"], "I look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "read");
  EXPECT_EQ(output[2]["namespace"], "files");
  EXPECT_EQ(output[2]["arguments"], R"({"z": "x"})");
  EXPECT_EQ(output[3]["type"], "custom_tool_call");
  EXPECT_EQ(output[3]["name"], "apply_patch");
  EXPECT_EQ(output[3]["input"], "*** Begin\n\"\u00fc\U0001F600\"");
  EXPECT_FALSE(output[3].contains("namespace"));
  for (const json& item : output) EXPECT_EQ(item["status"], "completed");
  // What the model saw.
  const json shown = json::parse(engine_->last_template_json())["tools"];
  ASSERT_EQ(shown.size(), 3u);
  EXPECT_EQ(shown[1]["function"]["parameters"]["required"], json{"input"});
  EXPECT_NE(shown[1]["function"]["description"].get<std::string>().find("start: A"), std::string::npos);
  EXPECT_EQ(shown[2]["function"]["name"], "files__read");
}

TEST_F(ResponsesTest, StreamsTheVeryItemsOfTheFinalObject) {
  start_with(kAnswer);
  const auto all = events(R"({"input":"hi","stream":true,)" + std::string(kTools) + "}");
  std::vector<json> items;
  std::map<std::string, std::string> deltas;
  std::vector<std::string> types;
  std::string open;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const json& event = all[i];
    const std::string type = event["type"];
    EXPECT_EQ(event["sequence_number"], i);
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.output_item.added") {
      EXPECT_EQ(open, "");
      open = event["item"]["id"];
      EXPECT_EQ(event["output_index"], items.size());
      EXPECT_EQ(event["item"]["status"], "in_progress");
    } else if (type == "response.output_item.done") {
      EXPECT_EQ(event["item"]["id"], open);
      items.push_back(event["item"]);
      open.clear();
    } else if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], open);
      EXPECT_EQ(event["output_index"], items.size());
      if (type.ends_with(".delta")) deltas[open] += event["delta"].get<std::string>();
    }
  }
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(types.front(), "response.created");
  EXPECT_EQ(types[1], "response.in_progress");
  EXPECT_EQ(types.back(), "response.completed");
  EXPECT_EQ(json(items), all.back()["response"]["output"]);
  EXPECT_EQ(all.front()["response"]["id"], all.back()["response"]["id"]);
  EXPECT_EQ(deltas[items[0]["id"]], items[0]["content"][0]["text"]);
  EXPECT_EQ(deltas[items[1]["id"]], items[1]["content"][0]["text"]);
  EXPECT_EQ(deltas[items[2]["id"]], items[2]["arguments"]);
  EXPECT_EQ(deltas[items[3]["id"]], items[3]["input"]);
  const std::vector<std::string> message = {"response.output_item.added", "response.content_part.added",
                                            "response.output_text.delta", "response.output_text.done",
                                            "response.content_part.done", "response.output_item.done"};
  EXPECT_NE(std::search(types.begin(), types.end(), message.begin(), message.end()), types.end());
  std::set<std::string> ids;
  for (const json& item : items) ids.insert(item["id"]);
  EXPECT_EQ(ids.size(), 4u);
  // The same bytes, framed: the name of the event stands before its data.
  RawSocket raw(server_->port());
  raw.send(raw_post("/v1/responses", R"({"input":"hi","stream":true})", "Connection: close\r\n"));
  EXPECT_TRUE(raw.read_until("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,"));
}

TEST_F(ResponsesTest, ReadsEveryItem) {
  start_with("ok");
  const json response = ask(R"({"instructions":"Be brief.","input":[
    {"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[
      {"type":"custom","name":"exec","format":{"type":"text"}}]}]},
    {"role":"developer","content":[{"type":"input_text","text":"Rules."}]},
    {"role":"user","content":"one"},
    {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"sum"}],"encrypted_content":"gAAA"},
    {"type":"message","role":"assistant","content":[],"phase":"commentary"},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"two","annotations":[]}]},
    {"type":"function_call","call_id":"c1","name":"read","namespace":"files","arguments":"{\"z\":"},
    {"type":"custom_tool_call","call_id":"c2","name":"gone","input":"a \"b\""},
    {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"out"},{"type":"input_text","text":"put"}]},
    {"type":"custom_tool_call_output","call_id":"c2","output":"done"},
    {"type":"local_shell_call","id":"l1","call_id":"c3","action":{"type":"exec","command":["ls"]},"status":"completed"},
    {"type":"local_shell_call_output","id":"c3","output":"files"},
    {"type":"shell_call","call_id":"c4","action":{"commands":["ls"]}},
    {"type":"shell_call_output","call_id":"c4","output":[{"stdout":"a","stderr":"b","outcome":{"type":"exit","exit_code":0}}]},
    {"type":"apply_patch_call","call_id":"c5","operation":{"type":"delete_file","path":"x"}},
    {"type":"apply_patch_call_output","call_id":"c5","status":"completed","output":null},
    {"type":"tool_search_call","arguments":{"query":"q"},"execution":"client","call_id":"c6"},
    {"type":"tool_search_output","call_id":"c6","tools":[{"type":"function","name":"found"}]},
    {"type":"web_search_call","id":"w","status":"completed","action":{"type":"search","query":"q"}},
    {"type":"file_search_call","id":"f"},{"type":"image_generation_call","id":"i"},{"type":"mcp_call","id":"m"},
    {"type":"code_interpreter_call","id":"ci"},{"type":"computer_call","id":"cc"},{"type":"program","id":"p"},
    {"type":"agent_message","content":[{"type":"input_text","text":"from another"}]},
    {"role":"system","content":"late"},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"three"}]}]})");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "ok");
  std::vector<std::pair<std::string, std::string>> turns;
  for (const ChatMessage& message : engine_->last_messages()) turns.emplace_back(message.role, message.content);
  const std::vector<std::pair<std::string, std::string>> expected = {{"system", "Be brief.\n\nRules."},
                                                                     {"user", "one"},
                                                                     {"assistant", "two"},
                                                                     {"tool", "output"},
                                                                     {"tool", "done"},
                                                                     {"assistant", ""},
                                                                     {"tool", "files"},
                                                                     {"assistant", ""},
                                                                     {"tool", "ab"},
                                                                     {"assistant", ""},
                                                                     {"tool", ""},
                                                                     {"assistant", ""},
                                                                     {"tool", "done"},
                                                                     {"user", "from another"},
                                                                     {"system", "late"},
                                                                     {"user", "three"}};
  EXPECT_EQ(turns, expected);
  const json calls = json::parse(engine_->last_messages()[2].extra_json);
  EXPECT_EQ(calls["reasoning_content"], "sum");
  ASSERT_EQ(calls["tool_calls"].size(), 2u);
  EXPECT_EQ(calls["tool_calls"][0]["function"], (json{{"name", "files__read"}, {"arguments", "{\"z\":"}}));
  EXPECT_EQ(calls["tool_calls"][1]["function"], (json{{"name", "gone"}, {"arguments", {{"input", "a \"b\""}}}}));
  const json shown = json::parse(engine_->last_template_json())["tools"];
  EXPECT_EQ(shown[0]["function"]["name"], "exec");
  EXPECT_EQ(shown[1]["function"]["name"], "found");
}

TEST_F(ResponsesTest, FoldsSystemMessagesThatTheTemplateDoesNotTake) {
  FakeEngine::Options engine;
  engine.refuse_later_system = true;
  start(engine);
  ask(R"({"input":[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"developer","content":"c"},
          {"role":"user","content":"d"}]})");
  const auto messages = engine_->last_messages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1].content, "b\n\n<system>\nc\n</system>\n\nd");
}

TEST_F(ResponsesTest, ChoosesTools) {
  start_with("x");
  const auto forced = [&](const std::string& choice) {
    ask(R"({"input":"hi","tool_choice":)" + choice + "," + kTools + "}");
    return engine_->last_grammar().text;
  };
  EXPECT_NE(forced("\"required\"").find("files__read"), std::string::npos);
  EXPECT_EQ(forced(R"({"type":"function","name":"now"})").find("files__read"), std::string::npos);
  EXPECT_NE(forced(R"({"type":"custom","name":"apply_patch"})").find("apply_patch"), std::string::npos);
  const std::string some =
      forced(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"now"}]})");
  EXPECT_NE(some.find("now"), std::string::npos);
  EXPECT_EQ(some.find("apply_patch"), std::string::npos);
  for (const char* choice : {R"({"type":"function","name":"no"})", R"({"type":"web_search"})", "7", R"("any")",
                             R"({"type":"allowed_tools","mode":"required","tools":[]})"}) {
    EXPECT_EQ(refused(fmt::format(R"({{"input":"hi","tool_choice":{},{}}})", choice, kTools)), "tool_choice") << choice;
  }
}

TEST_F(ResponsesTest, EndsAsItStopped) {
  start_with("a long answer");
  const json cut = ask(R"({"input":"hi","max_output_tokens":3})");
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(cut["output"][0]["status"], "incomplete");
  EXPECT_EQ(events(R"({"input":"hi","max_output_tokens":3,"stream":true})").back()["type"], "response.incomplete");
  const json probe = ask(R"({"instructions":"x","input":[],"max_output_tokens":1})");
  EXPECT_EQ(probe["usage"]["output_tokens"], 1);
  const json likely = ask(R"({"input":"hi","top_logprobs":2,"include":["message.output_text.logprobs"]})");
  EXPECT_EQ(likely["output"][0]["content"][0]["logprobs"].size(), 13u);
  EXPECT_EQ(likely["output"][0]["content"][0]["logprobs"][0]["top_logprobs"].size(), 2u);
}

TEST_F(ResponsesTest, FailsInTheStream) {
  FakeEngine::Options engine;
  engine.fail_after_tokens = 1;
  engine.token_time = std::chrono::milliseconds(20);  // the stream has begun by then
  start(engine);
  const auto all = events(R"({"input":"hi","stream":true})");
  EXPECT_EQ(all.back()["type"], "response.failed");
  EXPECT_EQ(all.back()["response"]["error"]["code"], "server_error");
  EXPECT_EQ(all.back()["response"]["output"].size(), 1u);
  EXPECT_EQ(post("/v1/responses", R"({"input":"hi"})").status, 500);
}

TEST_F(ResponsesTest, AsksForAForm) {
  start_with("{}");
  ask(R"({"input":"hi","text":{"verbosity":"low","format":{"type":"json_schema","name":"n","strict":true,
          "schema":{"type":"object","properties":{"z":{},"a":{}}}}}})");
  EXPECT_EQ(engine_->last_grammar().text, R"({"type":"object","properties":{"z":{},"a":{}}})");
  ask(R"({"input":"hi","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"boolean"}}},)" +
      std::string(kTools) + "}");
  const json both = json::parse(engine_->last_grammar().text)["format"];
  EXPECT_EQ(both["type"], "or");
  EXPECT_EQ(both["elements"][0]["json_schema"]["type"], "boolean");
  ask(R"({"input":"hi","reasoning":{"effort":"none","summary":"auto"}})");
  EXPECT_EQ(json::parse(engine_->last_template_json())["enable_thinking"], false);
}

TEST_F(ResponsesTest, RefusesByName) {
  start_with("x");
  EXPECT_EQ(refused(R"({"input":"x","previous_response_id":"resp_1"})"), "previous_response_id");
  EXPECT_EQ(refused(R"({"input":"x","conversation":"c"})"), "conversation");
  EXPECT_EQ(refused(R"({"input":"x","background":true})"), "background");
  EXPECT_EQ(refused(R"({"input":"x","prompt":{"id":"p"}})"), "prompt");
  EXPECT_EQ(refused(R"({"input":"x","temprature":1})"), "temprature");
  EXPECT_EQ(refused(R"({"input":"x","truncation":"left"})"), "truncation");
  EXPECT_EQ(refused(R"({"input":"x","include":["everything"]})"), "include");
  EXPECT_EQ(refused(R"({"input":"x","text":{"format":{"type":"xml"}}})"), "text.format");
  EXPECT_EQ(refused(R"({"input":"x","text":{"length":3}})"), "text.length");
  EXPECT_EQ(refused(R"({"input":"x","reasoning":{"effrot":"low"}})"), "reasoning.effrot");
  EXPECT_EQ(refused(R"({"input":7})"), "input");
  EXPECT_EQ(refused(R"({"input":[{"type":"item_reference","id":"x"}]})"), "input[0].type");
  EXPECT_EQ(refused(R"({"input":[{"type":"compaction","encrypted_content":"x"}]})"), "input[0].type");
  EXPECT_EQ(refused(R"({"input":[{"type":"dream"}]})"), "input[0].type");
  EXPECT_EQ(refused(R"({"input":[7]})"), "input[0].type");
  EXPECT_EQ(refused(R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})"),
            "input[0].content");
  EXPECT_EQ(refused(R"({"input":[{"role":"robot","content":"x"}]})"), "input[0].role");
  EXPECT_EQ(refused(R"({"input":[{"type":"function_call","name":"f","arguments":""}]})"), "input[0]");
  EXPECT_EQ(refused(R"({"input":[{"type":"function_call_output","output":"x"}]})"), "input[0].call_id");
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"function","name":"a b"}]})"), "tools[0].name");
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"function","name":"f"},{"type":"custom","name":"f"}]})"),
            "tools[1].name");
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"namespace","name":"n"}]})"), "tools[0]");
  EXPECT_EQ(refused(R"({"input":"x","tools":[3]})"), "tools[0]");
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"functoin","name":"f"}]})"), "tools[0].type");
}

// Clients offer what a service would run, too; the model is not shown it.
TEST_F(ResponsesTest, LeavesOutTheToolsOfAService) {
  start_with("ok");
  for (const char* type :
       {"tool_search", "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
        "file_search", "mcp", "code_interpreter", "image_generation", "local_shell", "shell", "apply_patch", "computer",
        "computer_use_preview", "programmatic_tool_calling"}) {
    const json response =
        ask(fmt::format(R"({{"input":"x","tools":[{{"type":"{}"}},{{"type":"function","name":"f"}}]}})", type));
    EXPECT_EQ(response["status"], "completed") << type << response;
    const json shown = json::parse(engine_->last_template_json())["tools"];
    EXPECT_EQ(shown.size(), 1u) << type << shown;
  }
}

TEST(CustomInput, DecodesAsItComes) {
  const std::string arguments = "{ \"input\" : \"a\\n\\\\ \\u00fc\\ud83d\\ude00\\ud83d \\/\"}";
  for (std::size_t size = 1; size <= arguments.size(); ++size) {
    CustomInput input;
    std::string text;
    for (std::size_t at = 0; at < arguments.size(); at += size) text += input.append(arguments.substr(at, size));
    EXPECT_EQ(text + input.finish(), "a\n\\ \u00fc\U0001F600\uFFFD /");
  }
  const auto whole = [](const char* text) {
    CustomInput input;
    std::string out = input.append(text);
    return out + input.finish();
  };
  EXPECT_EQ(whole(R"({"other":1,"input":"x"})"), "x");
  EXPECT_EQ(whole(R"({"other":1})"), R"({"other":1})");
  EXPECT_EQ(whole("{}"), "");
  EXPECT_EQ(whole(""), "");
  EXPECT_EQ(whole(R"({"input":"cut)"), "cut");
}

TEST(ReasoningBlob, OpensWhatItSealed) {
  for (const std::string text : {"", "a", "ab", "abc", "\xFF\x00z", "long \u00fc text"}) {
    const std::string blob = seal_reasoning(text);
    EXPECT_EQ(open_reasoning(blob), text);
    EXPECT_FALSE(open_reasoning(blob + "AAAA").has_value());
  }
  EXPECT_FALSE(open_reasoning("gAAAAA").has_value());
  EXPECT_FALSE(open_reasoning("fovea1.").has_value());
  EXPECT_FALSE(open_reasoning("fovea1.0000000000000000!").has_value());
}

}  // namespace
}  // namespace fovea::server
