// The OpenAI API over real sockets: shapes, streams, errors, extensions.
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;
using ServiceTest = ServerTest;

std::string chat_body(const std::string& more = "", const std::string& content = "hi!") {
  return R"({"model":"fake","messages":[{"role":"user","content":")" + content + "\"}]" + more + "}";
}

TEST_F(ServiceTest, ListsTheModel) {
  start();
  const json body = json::parse(get("/v1/models").body);
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["data"][0]["id"], "fake");
  EXPECT_EQ(body["data"][0]["object"], "model");
  EXPECT_EQ(body["data"][0]["max_model_len"], 4096);
}

TEST_F(ServiceTest, AnswersAChat) {
  start();
  const HttpResponse response = post("/v1/chat/completions", chat_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const json body = json::parse(response.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_EQ(body["choices"][0]["message"], (json{{"role", "assistant"}, {"content", "hi!"}, {"refusal", nullptr}}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 6);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(ServiceTest, StreamsAChatByteForByte) {
  start();
  RawSocket socket(server_->port());
  socket.send(raw_post("/v1/chat/completions", chat_body(R"(,"stream":true)", "ab"), "Connection: close\r\n"));
  ASSERT_TRUE(socket.read_to_end());
  const std::string& bytes = socket.received();
  EXPECT_NE(bytes.find("Content-Type: text/event-stream; charset=utf-8\r\n"), std::string::npos);
  EXPECT_NE(bytes.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(bytes.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  const auto events = stream("/v1/chat/completions", chat_body(R"(,"stream":true)", "ab"));
  ASSERT_EQ(events.size(), 4u);
  const json first = json::parse(events[0]);
  const std::string head =
      fmt::format(R"({{"id":"{}","object":"chat.completion.chunk","created":{},"model":"fake","choices":[)",
                  first["id"].get<std::string>(), first["created"].get<std::int64_t>());
  EXPECT_EQ(events[0],
            head + R"({"index":0,"delta":{"role":"assistant","content":"a"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(events[1], head + R"({"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(events[2], head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]})");
  EXPECT_EQ(events[3], "[DONE]");
}

TEST_F(ServiceTest, SendsUsageOnlyWhenAsked) {
  start();
  const auto events =
      stream("/v1/chat/completions", chat_body(R"(,"stream":true,"stream_options":{"include_usage":true})", "ab"));
  ASSERT_EQ(events.size(), 5u);
  for (int i = 0; i < 3; ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_TRUE(chunk.contains("usage") && chunk["usage"].is_null());
    EXPECT_EQ(chunk["choices"].size(), 1u);
  }
  const json last = json::parse(events[3]);
  EXPECT_EQ(last["choices"], json::array());
  EXPECT_EQ(last["usage"]["total_tokens"], 4);
  EXPECT_EQ(events[4], "[DONE]");
}

TEST_F(ServiceTest, InterleavesChoices) {
  start();
  const auto events = stream("/v1/chat/completions", chat_body(R"(,"stream":true,"n":3)", "ab"));
  std::map<int, std::string> texts;
  std::map<int, int> roles, finishes;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json choice = json::parse(events[i])["choices"][0];
    const int index = choice["index"];
    if (choice["delta"].contains("role")) ++roles[index];
    if (choice["delta"].contains("content")) texts[index] += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++finishes[index];
  }
  EXPECT_EQ(events.back(), "[DONE]");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], "ab");
    EXPECT_EQ(roles[i], 1);
    EXPECT_EQ(finishes[i], 1);
  }
}

TEST_F(ServiceTest, ReportsChatLogprobs) {
  start();
  const json body =
      json::parse(post("/v1/chat/completions", chat_body(R"(,"logprobs":true,"top_logprobs":2)", "ab")).body);
  const json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["bytes"], json::array({97}));
  EXPECT_EQ(content[0]["logprob"], -0.25);
  EXPECT_EQ(content[1]["top_logprobs"].size(), 2u);
  EXPECT_TRUE(body["choices"][0]["logprobs"]["refusal"].is_null());
}

TEST_F(ServiceTest, CompletesEveryKindOfPrompt) {
  start();
  const auto texts = [&](const std::string& prompt) {
    std::vector<std::string> out;
    const json body = json::parse(post("/v1/completions", R"({"prompt":)" + prompt + "}").body);
    EXPECT_EQ(body["object"], "text_completion");
    for (const json& choice : body["choices"]) out.push_back(choice["text"]);
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(R"("one")"), Texts({"one"}));
  EXPECT_EQ(texts(R"(["one","two"])"), Texts({"one", "two"}));
  EXPECT_EQ(texts("[104,105]"), Texts({"hi"}));
  EXPECT_EQ(texts("[[104,105],[33]]"), Texts({"hi", "!"}));
}

TEST_F(ServiceTest, CompletionDefaultsEchoAndLogprobs) {
  start();
  json body = json::parse(post("/v1/completions", R"({"prompt":"abcdefghijklmnopqrstuvwxyz"})").body);
  EXPECT_EQ(body["choices"][0]["text"], "abcdefghijklmnop");  // max_tokens 16
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  body = json::parse(post("/v1/completions", R"({"prompt":"ab","echo":true,"n":2})").body);
  EXPECT_EQ(body["choices"][1]["text"], "abab");
  body = json::parse(post("/v1/completions", R"({"prompt":"ab","logprobs":2})").body);
  const json& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::array({"a", "b"}));
  EXPECT_EQ(logprobs["token_logprobs"], json::array({-0.25, -0.25}));
  EXPECT_EQ(logprobs["text_offset"], json::array({0, 1}));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
}

TEST_F(ServiceTest, StreamsACompletion) {
  start();
  const auto events = stream("/v1/completions", R"({"prompt":["ab","c"],"stream":true,"echo":true})");
  std::map<int, std::string> texts;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_TRUE(chunk["choices"][0].contains("finish_reason"));
    texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(texts[0], "abab");
  EXPECT_EQ(texts[1], "cc");
}

TEST_F(ServiceTest, BestOfKeepsTheLikeliest) {
  start();
  // The fake engine gives choice k the logprob -0.25 (k + 1).
  const json body = json::parse(post("/v1/completions", R"({"prompt":"ab","n":2,"best_of":4})").body);
  EXPECT_EQ(body["choices"].size(), 2u);
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
  EXPECT_EQ(engine_->last_request().n, 4);
}

TEST_F(ServiceTest, PassesSamplingOn) {
  start();
  const HttpResponse sent =
      post("/v1/chat/completions",
           chat_body(R"(,"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"seed":-3,"stop":["x","yy"],"max_tokens":9,
       "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"logit_bias":{"65":-100},"ignore_eos":true,
       "stop_token_ids":[1,2],"priority":3,"cache_salt":"salt","sparse":"quest","kv_budget":"T/8","sparse_prompt_tokens":7,"user":"me","metadata":{},"store":false,"tools":null,
       "service_tier":"auto","n":null,"response_format":{"type":"text"},"tool_choice":"none","best_of":1,"length_penalty":1,"unknown_field":null)"));
  const GenerateRequest request = engine_->last_request();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5f) << sent.body;
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(request.sampling.has_seed);
  EXPECT_EQ(request.sampling.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(request.sampling.max_tokens, 9);
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(request.sampling.logit_bias.at(0), (std::pair<std::int32_t, float>(65, -100.0f)));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "salt");
  EXPECT_EQ(request.sparse, "quest");
  EXPECT_EQ(request.kv_budget, "T/8");
  EXPECT_EQ(request.sparse_prompt_tokens, 7);
  EXPECT_EQ(request.n, 1);
}

TEST_F(ServiceTest, TakesABudgetAsNumberOrText) {
  start();
  EXPECT_EQ(post("/v1/chat/completions", chat_body(R"(,"sparse":"quest","kv_budget":512)")).status, 200);
  EXPECT_EQ(engine_->last_request().kv_budget, "512");
  for (const char* wrong : {"true", "[512]", "0", "1.5", "1e30", "\"\""}) {
    const HttpResponse sent = post("/v1/chat/completions", chat_body(std::string(",\"kv_budget\":") + wrong));
    EXPECT_EQ(sent.status, 400) << wrong;
    EXPECT_EQ(json::parse(sent.body)["error"]["param"], "kv_budget") << sent.body;
  }
}

TEST_F(ServiceTest, NamesTheFieldThatTheEngineRefuses) {
  FakeEngine::Options engine;
  engine.refusal = "the engine keeps no statistics of pages";
  engine.refused = "sparse";
  start(engine);
  for (const char* fields : {R"(,"sparse":"quest")", R"(,"sparse":"quest","stream":true)", R"(,"sparse":"")"}) {
    const HttpResponse sent = post("/v1/chat/completions", chat_body(fields));
    EXPECT_EQ(sent.status, 400) << fields;
    EXPECT_EQ(json::parse(sent.body)["error"]["param"], "sparse") << sent.body;
  }
}

TEST_F(ServiceTest, RefusesWithTheRightCode) {
  FakeEngine::Options engine;
  engine.max_context = 100;
  start(engine);
  const auto check = [&](const std::string& path, const std::string& body, int status, const char* param,
                         const char* code) {
    const HttpResponse response = post(path, body);
    EXPECT_EQ(response.status, status) << body << " -> " << response.body;
    const json error = json::parse(response.body)["error"];
    EXPECT_TRUE(error["message"].is_string());
    EXPECT_EQ(error["param"], param == nullptr ? json() : json(param)) << response.body;
    EXPECT_EQ(error["code"], code == nullptr ? json() : json(code)) << response.body;
  };
  const std::string chat = "/v1/chat/completions";
  check(chat, "{", 400, nullptr, "invalid_json");
  check(chat, "[]", 400, nullptr, nullptr);
  check(chat, "{}", 400, "messages", nullptr);
  check(chat, R"({"messages":[]})", 400, "messages", nullptr);
  check(chat, R"({"messages":[{"content":"x"}]})", 400, "messages[0]", nullptr);
  check(chat, R"({"messages":[{"role":"robot","content":"x"}]})", 400, "messages[0].role", nullptr);
  check(chat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400, "messages[0].content",
        "unsupported_parameter");
  check(chat, R"({"messages":[{"role":"user","content":"template error"}]})", 400, "messages", nullptr);
  check(chat, chat_body(R"(,"temperature":-1)"), 400, "temperature", nullptr);
  check(chat, chat_body(R"(,"temperature":"hot")"), 400, "temperature", nullptr);
  check(chat, chat_body(R"(,"top_p":1e999)"), 400, nullptr, "invalid_json");
  check(chat, chat_body(R"(,"n":0)"), 400, "n", nullptr);
  check(chat, chat_body(R"(,"n":1000000)"), 400, "n", nullptr);
  check(chat, chat_body(R"(,"max_tokens":0)"), 400, "max_tokens", nullptr);
  check(chat, chat_body(R"(,"max_tokens":1.5)"), 400, "max_tokens", nullptr);
  check(chat, chat_body(R"(,"top_logprobs":3)"), 400, "top_logprobs", nullptr);
  check(chat, chat_body(R"(,"tools":[{"type":"function"}])"), 400, "tools", nullptr);
  check(chat, chat_body(R"(,"response_format":{"type":"json_schema"})"), 400, "response_format", nullptr);
  check(chat, chat_body(R"(,"stop":[1])"), 400, "stop", nullptr);
  check(chat, chat_body(R"(,"logit_bias":{"9999":1})"), 400, "logit_bias", nullptr);
  check(chat, chat_body(R"(,"stream_options":{"include_usage":true})"), 400, "stream_options", nullptr);
  check(chat, R"({"model":"gpt-9","messages":[{"role":"user","content":"x"}]})", 404, "model", "model_not_found");
  check(chat, chat_body("", std::string(200, 'x')), 400, "messages", "context_length_exceeded");
  check(chat, chat_body(R"(,"max_completion_tokens":100)"), 400, "max_completion_tokens", "context_length_exceeded");
  check("/v1/completions", R"({"prompt":")" + std::string(200, 'x') + "\"}", 400, "prompt", "context_length_exceeded");
  check(chat, chat_body("", ""), 400, "messages", nullptr);
  check(chat, chat_body(R"(,"temprature":0)"), 400, "temprature", "unknown_parameter");
  check(chat, chat_body(R"(,"grammar":"root ::= x")"), 400, "grammar", "unsupported_parameter");
  check(chat, chat_body(R"(,"best_of":2)"), 400, "best_of", "unsupported_parameter");
  check(chat, chat_body(R"(,"web_search_options":{})"), 400, "web_search_options", "unsupported_parameter");
  check(chat, chat_body(R"(,"detokenize":false)"), 400, "detokenize", "unsupported_parameter");
  check(chat, R"({"messages":[{"role":"user","content":[{"type":"text","text":5}]}]})", 400, "messages[0].content",
        nullptr);
  check(chat, chat_body(R"(,"stream":true,"stream_options":{"continuous_usage_stats":true})"), 400,
        "stream_options.continuous_usage_stats", "unsupported_parameter");
  check("/v1/completions", R"({"prompt":"x","top_logprobs":3})", 400, "top_logprobs", "unknown_parameter");
  check("/v1/completions", R"({})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":[]})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":[1,-2]})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":[256]})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":{"a":1}})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":""})", 400, "prompt", nullptr);
  check("/v1/completions", R"({"prompt":"x","suffix":"y"})", 400, "suffix", "unsupported_parameter");
  check("/v1/completions", R"({"prompt":"x","best_of":2,"n":3})", 400, "best_of", nullptr);
  check("/v1/completions", R"({"prompt":"x","best_of":2,"stream":true})", 400, "best_of", nullptr);
  check("/v1/nothing", "{}", 404, nullptr, nullptr);
  check("/v1/models", "{}", 405, nullptr, nullptr);
  check(chat, "{\"messages\":\"\xff\xfe\"}", 400, nullptr, "invalid_json");
  check(chat, std::string(100000, '['), 400, nullptr, "invalid_json");
  check(chat, "", 400, nullptr, "invalid_json");
}

TEST_F(ServiceTest, SaysThatNoModelMakesEmbeddings) {
  start();
  for (const char* path : {"/v1/embeddings", "/v1/rerank"}) {
    const HttpResponse refused = post(path, R"({"model":"fake","input":"x"})");
    EXPECT_EQ(refused.status, 404);
    EXPECT_NE(refused.body.find("none of them makes embeddings"), std::string::npos) << refused.body;
  }
}

TEST_F(ServiceTest, NamesWhatAnUnknownFieldMayMean) {
  start();
  const json error = json::parse(post("/v1/chat/completions", chat_body(R"(,"temprature":0)")).body)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("temperature"), std::string::npos) << error;
}

TEST_F(ServiceTest, ALenientServerIgnoresWhatItDoesNotDo) {
  ServerOptions options;
  options.service.lenient = true;
  start({}, options);
  const HttpResponse sent = post("/v1/chat/completions", chat_body(R"(,"temprature":0,"grammar":"x","stream":false)"));
  EXPECT_EQ(sent.status, 200) << sent.body;
  EXPECT_EQ(post("/v1/chat/completions", chat_body(R"(,"temperature":"hot")")).status, 400);
}

TEST_F(ServiceTest, ServesTheModelUnderItsNames) {
  ServerOptions options;
  options.service.served_names = {"org/shown", "other"};
  start({}, options);
  const json list = json::parse(get("/v1/models").body)["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1]["id"], "other");
  EXPECT_EQ(json::parse(get("/v1/models/org/shown").body), list[0]);
  EXPECT_EQ(json::parse(get("/v1/models/org%2Fshown").body)["id"], "org/shown");
  EXPECT_EQ(json::parse(get("/v1/models/").body)["data"], list);
  const HttpResponse missing = get("/v1/models/none");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(json::parse(missing.body)["error"]["code"], "model_not_found");
  EXPECT_EQ(json::parse(post("/v1/completions", R"({"prompt":"x"})").body)["model"], "org/shown");
  EXPECT_EQ(json::parse(post("/v1/completions", R"({"prompt":"x","model":"other"})").body)["model"], "other");
}

TEST_F(ServiceTest, AddsSpecialTokensToTextUnlessToldNot) {
  FakeEngine::Options engine;
  engine.has_bos = true;
  start(engine);
  post("/v1/completions", R"({"prompt":"hi"})");
  EXPECT_EQ(engine_->last_request().prompt, (std::vector<std::int32_t>{'^', 'h', 'i'}));
  post("/v1/completions", R"({"prompt":"hi","add_special_tokens":false})");
  EXPECT_EQ(engine_->last_request().prompt, (std::vector<std::int32_t>{'h', 'i'}));
  post("/v1/completions", R"({"prompt":[104]})");
  EXPECT_EQ(engine_->last_request().prompt, (std::vector<std::int32_t>{'h'}));
}

TEST_F(ServiceTest, FillsInWhereTheVocabularyCan) {
  FakeEngine::Options engine;
  engine.has_bos = true;
  engine.specials = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};
  start(engine);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"ab","suffix":"cd"})").status, 200);
  EXPECT_EQ(engine_->last_request().prompt, (std::vector<std::int32_t>{'^', 1, 'a', 'b', 2, 'c', 'd', 3}));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"ab","suffix":""})").status, 200);
  EXPECT_EQ(engine_->last_request().prompt.size(), 3u);
  for (const char* wrong : {R"({"prompt":[65],"suffix":"x"})", R"({"prompt":"a","suffix":7})"}) {
    EXPECT_EQ(json::parse(post("/v1/completions", wrong).body)["error"]["param"], "suffix");
  }
  EXPECT_EQ(json::parse(post("/v1/completions", R"({"prompt":"a","suffix":"x","echo":true})").body)["error"]["param"],
            "echo");
  const json info = json::parse(get("/tokenizer_info").body);
  EXPECT_EQ(info["bos_token"], "^");
  EXPECT_TRUE(info["pad_token"].is_null());
}

TEST_F(ServiceTest, RefusesASuffixThatTheModelWasNotTaught) {
  start();
  const json error = json::parse(post("/v1/completions", R"({"prompt":"ab","suffix":"cd"})").body)["error"];
  EXPECT_EQ(error["param"], "suffix");
  EXPECT_EQ(error["code"], "unsupported_parameter");
  const HttpResponse none = post("/v1/embeddings", R"({"input":"x"})");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(none.body.find("embeddings"), std::string::npos);
}

TEST_F(ServiceTest, ReadsContentParts) {
  start();
  const json body = json::parse(
      post("/v1/chat/completions",
           R"({"messages":[{"role":"developer","content":null},{"role":"user","name":null,"content":[{"type":"text",
           "text":"ab"},{"type":"text","text":"cd"}]}]})")
          .body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abcd");
}

TEST_F(ServiceTest, AnswersOverloadBeforeAnyHeader) {
  FakeEngine::Options engine;
  engine.max_queued = 0;
  start(engine);
  auto response = client()->post("/v1/chat/completions", chat_body(R"(,"stream":true)"));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 429);
  bool retry = false;
  for (const auto& [name, value] : response->headers) retry |= name == "retry-after";
  EXPECT_TRUE(retry);
}

TEST_F(ServiceTest, CancelsEarlierPromptsWhenALaterIsRefused) {
  FakeEngine::Options engine;
  engine.max_queued = 2;
  engine.endless = true;
  engine.token_time = std::chrono::milliseconds(5);
  start(engine);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":["a","b","c"],"max_tokens":1000})").status, 429);
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
}

TEST_F(ServiceTest, ReportsAnEngineErrorInBothForms) {
  FakeEngine::Options engine;
  engine.fail_after_tokens = 1;
  engine.token_time = std::chrono::milliseconds(5);
  start(engine);
  const HttpResponse response = post("/v1/chat/completions", chat_body());
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(json::parse(response.body)["error"]["type"], "server_error");
  const auto events = stream("/v1/chat/completions", chat_body(R"(,"stream":true)"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(json::parse(events[1]).contains("error"));
}

TEST_F(ServiceTest, AsksForTheKey) {
  ServerOptions options;
  options.service.api_keys = {"another", "secret"};
  start({}, options);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/v1/models").status, 401);
  auto one = client();
  one->set_header("Authorization", "Bearer secres");
  EXPECT_EQ(one->get("/v1/models")->status, 401);
  auto two = client();
  two->set_header("Authorization", "Bearer secret");
  EXPECT_EQ(two->get("/v1/models")->status, 200);
  auto three = client();
  three->set_header("Authorization", "bearer secret");
  EXPECT_EQ(three->get("/v1/models")->status, 200);
  auto four = client();
  four->set_header("Authorization", "Basic secret");
  EXPECT_EQ(four->get("/v1/models")->status, 401);
  auto five = client();
  five->set_header("Authorization", "Bearer another");
  EXPECT_EQ(five->get("/v1/models")->status, 200);
}

TEST_F(ServiceTest, EchoesTheRequestIdAndAllowsOrigins) {
  ServerOptions options;
  options.http.cors_origin = "*";
  start({}, options);
  RawSocket socket(server_->port());
  socket.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: abc-1\r\n\r\n");
  ASSERT_TRUE(socket.read_until("ok"));
  EXPECT_NE(socket.received().find("x-request-id: abc-1\r\n"), std::string::npos);
  EXPECT_NE(socket.received().find("Access-Control-Allow-Origin: *\r\n"), std::string::npos);
  RawSocket preflight(server_->port());
  preflight.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Headers: a, b\r\n\r\n");
  ASSERT_TRUE(preflight.read_until("\r\n\r\n"));
  EXPECT_EQ(preflight.received().substr(0, 12), "HTTP/1.1 204");
  EXPECT_NE(preflight.received().find("Access-Control-Allow-Headers: a, b\r\n"), std::string::npos);
}

TEST_F(ServiceTest, ALoopbackServerAnswersToLocalNamesAlone) {
  ServerOptions options;
  options.service.allowed_hosts = {"box.example"};
  start({}, options);
  const auto ask = [&](const std::string& head) {
    RawSocket socket(server_->port());
    socket.send(head + "\r\n\r\n");
    EXPECT_TRUE(socket.read_until("\r\n\r\n"));
    EXPECT_EQ(socket.received().find("Access-Control-Allow-Origin"), std::string::npos);
    return socket.received().substr(9, 3);
  };
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1\r\nHost: localhost:8000"), "200");
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1\r\nHost: box.example"), "200");
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1\r\nHost: rebound.example:8000"), "403");
  EXPECT_EQ(ask("POST /flush_cache HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 0"),
            "403");
  EXPECT_EQ(engine_->flushes(), 0);
}

TEST_F(ServiceTest, ALargeBodyHoldsUpNoSmallOne) {
  std::promise<void> small_is_answered;
  FakeEngine::Options engine;
  engine.on_encode = [done = small_is_answered.get_future().share()](std::string_view text) {
    if (text.size() > 100'000) done.wait();
  };
  start(engine);
  auto large = std::async(std::launch::async, [&] {
    return post("/v1/completions", R"({"prompt":")" + std::string(200'000, 'x') + "\"}").status;
  });
  EXPECT_TRUE(eventually([&] { return server_->http().active() == 1; }));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
  small_is_answered.set_value();
  EXPECT_EQ(large.get(), 400);
}

TEST_F(ServiceTest, LogsEachRequestAtItsEnd) {
  std::mutex mutex;
  std::vector<RequestRecord> records;
  ServerOptions options;
  options.service.on_request = [&](const RequestRecord& record) {
    const std::scoped_lock lock(mutex);
    records.push_back(record);
  };
  start({}, options);
  get("/health");
  stream("/v1/chat/completions", chat_body(R"(,"stream":true)", "ab"));
  post("/v1/completions", "{");
  server_.reset();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].path, "/v1/chat/completions");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_EQ(records[0].generation.completion_tokens, 2);
  EXPECT_GE(records[0].seconds, records[0].generation.first_token_seconds);
  EXPECT_GE(records[0].generation.first_token_seconds, 0.0);
  EXPECT_EQ(records[1].status, 400);
  EXPECT_EQ(records[1].generation.completion_tokens, -1);
  RequestRecord record = records[0];
  record.id = "a\"b";
  const json line = json::parse(request_line_json(record));
  EXPECT_EQ(line["id"], "a\"b");
  EXPECT_EQ(line["completion_tokens"], 2);
  EXPECT_NE(request_line(record).find(" completion=2\n"), std::string::npos);
}

TEST_F(ServiceTest, RefusesOtherContentTypes) {
  start();
  RawSocket socket(server_->port());
  socket.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_TRUE(socket.read_until("HTTP/1.1 415 "));
  RawSocket coded(server_->port());
  ASSERT_TRUE(coded.send(raw_post("/v1/completions", "\x1f\x8b", "Content-Encoding: gzip\r\n")));
  EXPECT_TRUE(coded.read_until("encoded as gzip")) << coded.received();
}

TEST_F(ServiceTest, TokenizesAndFlushes) {
  start();
  EXPECT_EQ(json::parse(post("/tokenize", R"({"prompt":"hi"})").body)["tokens"], json::array({104, 105}));
  EXPECT_EQ(json::parse(post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").body)["count"], 2);
  EXPECT_EQ(json::parse(post("/tokenize", R"({"prompt":"hi","return_token_strs":true})").body)["token_strs"],
            json::array({"h", "i"}));
  EXPECT_EQ(json::parse(post("/detokenize", R"({"tokens":[104,105]})").body)["prompt"], "hi");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[1000]})").status, 400);
  EXPECT_EQ(post("/flush_cache", "").status, 200);
  EXPECT_EQ(engine_->flushes(), 1);
}

TEST_F(ServiceTest, ReturnsTokenIds) {
  start();
  const json body = json::parse(post("/v1/completions", R"({"prompt":"hi","return_token_ids":true})").body);
  EXPECT_EQ(body["choices"][0]["token_ids"], json::array({104, 105}));
  const json prompt = json::array({104, 105});
  EXPECT_EQ(body["choices"][0]["prompt_token_ids"], prompt);
  const auto pieces = stream("/v1/completions", R"({"prompt":["hi","ho"],"stream":true,"return_token_ids":true})");
  std::map<int, json> prompts;
  for (const std::string& data : pieces) {
    if (data == "[DONE]") continue;
    const json choice = json::parse(data)["choices"][0];
    if (choice.contains("prompt_token_ids")) {
      EXPECT_TRUE(prompts.emplace(choice["index"].get<int>(), choice["prompt_token_ids"]).second) << "twice";
    }
  }
  EXPECT_EQ(prompts, (std::map<int, json>{{0, prompt}, {1, json::array({104, 111})}}));
  const json chat = json::parse(post("/v1/chat/completions", chat_body(R"(,"return_token_ids":true)")).body);
  EXPECT_FALSE(chat["prompt_token_ids"].empty());
  EXPECT_FALSE(chat["choices"][0].contains("prompt_token_ids"));
  const auto events = stream("/v1/chat/completions", chat_body(R"(,"stream":true,"return_token_ids":true)"));
  EXPECT_EQ(json::parse(events[0])["choices"][0]["token_ids"], json::array({104}));
  EXPECT_EQ(json::parse(events[0])["prompt_token_ids"], chat["prompt_token_ids"]);
  EXPECT_FALSE(json::parse(events[1]).contains("prompt_token_ids"));
}

TEST_F(ServiceTest, PublishesMetrics) {
  start();
  post("/v1/chat/completions", chat_body());
  post("/v1/chat/completions", "{");
  const HttpResponse response = get("/metrics");
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"fovea_time_to_first_token_seconds_count 1\n", "fovea_inter_token_latency_seconds_count 2\n",
        "fovea_http_requests_total{path=\"/v1/chat/completions\",code=\"200\"} 1\n",
        "fovea_http_requests_total{path=\"/v1/chat/completions\",code=\"400\"} 1\n", "fovea_prompt_tokens_total 3\n",
        "fovea_generated_tokens_total 3\n", "# TYPE fovea_kv_bytes_read_total counter\n"}) {
    EXPECT_NE(response.body.find(line), std::string::npos) << line << response.body;
  }
}

}  // namespace
}  // namespace fovea::server
