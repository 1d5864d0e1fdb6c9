// SGLang's /generate and what its benchmark asks beside it, over a fake engine; and tokens in and out, as vLLM has
// them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

class GenerateTest : public ServerTest {
 protected:
  std::string refused(const std::string& path, const std::string& body) {
    const HttpResponse sent = post(path, body);
    EXPECT_EQ(sent.status, 400) << body << sent.body;
    const json param = json::parse(sent.body)["error"]["param"];
    return param.is_string() ? param.get<std::string>() : "";
  }
};

TEST_F(GenerateTest, AnswersTheBenchmark) {
  start();
  const std::string body =
      R"({"text":"hello","sampling_params":{"temperature":0.0,"max_new_tokens":3,"ignore_eos":true},
      "lora_path":null,"return_logprob":false,"logprob_start_len":-1)";
  const json whole = json::parse(post("/generate", body + "}").body);
  EXPECT_EQ(whole["text"], "hel");
  EXPECT_EQ(whole["meta_info"]["finish_reason"], (json{{"type", "length"}, {"length", 3}}));
  EXPECT_EQ(whole["meta_info"]["prompt_tokens"], 5);
  EXPECT_EQ(whole["meta_info"]["completion_tokens"], 3);
  const auto events = stream("/generate", body + R"(,"stream":true})");
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events.back(), "[DONE]");
  for (int i = 0; i < 4; ++i) {
    const json event = json::parse(events[i]);
    EXPECT_EQ(event["text"], std::string("hello").substr(0, std::min(i + 1, 3)));
    EXPECT_EQ(event["meta_info"]["completion_tokens"], std::min(i + 1, 3));
    EXPECT_EQ(event["meta_info"]["finish_reason"].is_null(), i < 3);
  }
  EXPECT_EQ(json::parse(post("/generate", R"({"input_ids":[104,105],"rid":"mine"})").body)["meta_info"]["id"], "mine");
  EXPECT_EQ(engine_->last_request().sampling.max_tokens, 128);
  post("/generate",
       R"({"text":"x","sampling_params":{"json_schema":"{\"type\":\"object\"}","stop":["a"],"sampling_seed":4}})");
  EXPECT_EQ(engine_->last_grammar().text, R"({"type":"object"})");
  EXPECT_EQ(engine_->last_request().sampling.seed, 4u);
}

TEST_F(GenerateTest, RefusesByName) {
  start();
  EXPECT_EQ(refused("/generate", "{}"), "text");
  EXPECT_EQ(refused("/generate", R"({"text":"a","input_ids":[1]})"), "text");
  EXPECT_EQ(refused("/generate", R"({"text":["a","b"]})"), "text");
  EXPECT_EQ(refused("/generate", R"({"input_ids":[[1]]})"), "input_ids");
  EXPECT_EQ(refused("/generate", R"({"text":"a","return_logprob":true})"), "return_logprob");
  EXPECT_EQ(refused("/generate", R"({"text":"a","image_data":"x"})"), "image_data");
  EXPECT_EQ(refused("/generate", R"({"text":"a","sampling_params":[]})"), "sampling_params");
  EXPECT_EQ(refused("/generate", R"({"text":"a","sampling_params":{"n":2}})"), "sampling_params.n");
  EXPECT_EQ(refused("/generate", R"({"text":"a","sampling_params":{"temprature":2}})"), "sampling_params.temprature");
}

TEST_F(GenerateTest, TellsOfModelAndServer) {
  start();
  for (const char* path : {"/get_server_info", "/server_info"}) {
    const json info = json::parse(get(path).body);
    EXPECT_EQ(info["model_path"], "fake");
    EXPECT_EQ(info["tp_size"], 1);
    EXPECT_EQ(info["max_model_len"], 4096);
  }
  for (const char* path : {"/get_model_info", "/model_info"}) {
    EXPECT_EQ(json::parse(get(path).body)["is_generation"], true);
  }
}

TEST_F(GenerateTest, TokensOfChats) {
  FakeEngine::Options engine;
  engine.chat_template = "{{ tools }}<tool_call>";
  start(engine);
  const json tokens =
      json::parse(post("/tokenize",
                       R"({"model":"fake","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],
            "continue_final_message":true,"add_generation_prompt":false,"chat_template_kwargs":{"x":1},
            "tools":[{"type":"function","function":{"name":"f"}}]})")
                      .body);
  EXPECT_EQ(tokens["tokens"], (json{97, 98}));
  EXPECT_TRUE(engine_->last_messages().back().unfinished);
  EXPECT_EQ(json::parse(engine_->last_template_json())["tools"].size(), 1u);
  EXPECT_EQ(json::parse(engine_->last_template_json())["x"], 1);
  EXPECT_EQ(refused("/tokenize", R"({"prompt":"a","promt":"b"})"), "promt");
  EXPECT_EQ(refused("/detokenize", R"({"tokens":[1],"token":1})"), "token");
  EXPECT_EQ(post("/tokenize", R"({"model":"no","prompt":"a"})").status, 404);
  EXPECT_EQ(post("/detokenize", R"({"model":"no","tokens":[1]})").status, 404);
}

TEST_F(GenerateTest, GoesOnWithTheLastMessage) {
  start();
  const std::string chat = "/v1/chat/completions";
  post(
      chat,
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true})");
  EXPECT_TRUE(engine_->last_messages().back().unfinished);
  EXPECT_EQ(refused(chat, R"({"messages":[{"role":"user","content":"a"}],"continue_final_message":true})"),
            "continue_final_message");
  EXPECT_EQ(refused(chat, R"({"messages":[{"role":"assistant","content":"a"}],"continue_final_message":true,
                              "add_generation_prompt":true})"),
            "continue_final_message");
}

}  // namespace
}  // namespace fovea::server
