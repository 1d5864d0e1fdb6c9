// Reasoning cut from answers, in pieces of every size, and through the chat API.
#include "server/openai/reasoning.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

struct Cut {
  const char *text, *reasoning, *rest;
  bool open = false;
};

TEST(ReasoningParser, CutsPiecesOfEverySize) {
  const Cut cuts[] = {
      {"<think>\nso\n and so\n</think>\n\nYes.\n", "so\n and so", "Yes.\n"},
      {"\n\n<think></think>Yes.", "", "Yes."},
      {"so </thin g>\n</think>Yes </think>", "so </thin g>", "Yes </think>", true},
      {" no <think>x</think>", "", " no <think>x</think>"},
      {"<thin", "", "<thin"},
      {"<think>cut \n", "cut", ""},
      {"all of it", "all of it", "", true},
      {"", "", "", true},
      {"  ", "", "  "},
  };
  const ReasoningFormat& format = *reasoning_format_named("think");
  for (const Cut& cut : cuts) {
    const std::string text = cut.text;
    for (std::size_t size = 1; size <= text.size() + 1; ++size) {
      ReasoningParser parser(format, cut.open);
      std::string reasoning, rest;
      for (std::size_t at = 0; at < text.size(); at += size) {
        const ReasoningParser::Piece piece = parser.append(std::string_view(text).substr(at, size));
        reasoning += piece.reasoning;
        rest += piece.rest;
      }
      const ReasoningParser::Piece end = parser.finish();
      EXPECT_EQ(reasoning + end.reasoning, cut.reasoning) << text << size;
      EXPECT_EQ(rest + end.rest, cut.rest) << text << size;
    }
  }
  EXPECT_EQ(reasoning_format_of("{% if '</think>' in x %}")->name, "think");
  EXPECT_EQ(reasoning_format_of("[THINK][/THINK]")->name, "mistral");
  EXPECT_EQ(reasoning_format_of("plain"), nullptr);
  EXPECT_EQ(reasoning_format_named("off"), nullptr);
}

class ReasoningTest : public ServerTest {};

TEST_F(ReasoningTest, IsAMemberOfItsOwn) {
  FakeEngine::Options engine;
  engine.chat_template = "</think>";
  engine.answer = "<think>\nHm.\n</think>\n\nYes.";
  start(engine);
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}])";
  const json whole = json::parse(post("/v1/chat/completions", body + "}").body);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Yes.");
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], "Hm.");
  EXPECT_GT(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
  std::string content, reasoning;
  for (const std::string& data : stream("/v1/chat/completions", body + R"(,"stream":true})")) {
    if (data == "[DONE]") continue;
    const json delta = json::parse(data)["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) content += delta["content"].get<std::string>();
    if (delta.contains("reasoning_content")) reasoning += delta["reasoning_content"].get<std::string>();
  }
  EXPECT_EQ(content, "Yes.");
  EXPECT_EQ(reasoning, "Hm.");
  // Held to a form from its first token, an answer has none.
  const json form =
      json::parse(post("/v1/chat/completions", body + R"(,"response_format":{"type":"json_object"}})").body);
  EXPECT_FALSE(form["choices"][0]["message"].contains("reasoning_content"));
  post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"b","reasoning_content":"c"},{"role":"user","content":"d"}]})");
  EXPECT_EQ(json::parse(engine_->last_messages()[1].extra_json)["reasoning_content"], "c");
}

TEST_F(ReasoningTest, MayBeginInThePrompt) {
  FakeEngine::Options engine;
  engine.chat_template = "</think>";
  engine.answer = "Hm.</think>Yes.";
  start(engine);
  const json whole =
      json::parse(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi<think>\n"}]})").body);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Yes.");
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], "Hm.");
}

}  // namespace
}  // namespace fovea::server
