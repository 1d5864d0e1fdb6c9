// response_format and its relatives, from the body to what the engine is told.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;
using ResponseFormatTest = ServerTest;

std::string body_of(const std::string& more) { return R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}"; }

TEST_F(ResponseFormatTest, TellsTheEngine) {
  start();
  struct Case {
    const char* body;
    GrammarKind kind;
    const char* text;
  };
  const Case cases[] = {
      {R"("response_format":{"type":"json_object"})", GrammarKind::kJsonSchema, R"({"type":"object"})"},
      // Keys stay in their order.
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"z":1,"a":2}}})",
       GrammarKind::kJsonSchema, R"({"z":1,"a":2})"},
      {R"("structured_outputs":{"json":{"z":1,"a":2},"regex":null})", GrammarKind::kJsonSchema, R"({"z":1,"a":2})"},
      {R"("structured_outputs":{"json_object":true})", GrammarKind::kJsonSchema, R"({"type":"object"})"},
      {R"("structured_outputs":{"regex":"a+"})", GrammarKind::kRegex, "a+"},
      {R"("structured_outputs":{"choice":["a\"b","ü"]})", GrammarKind::kEbnf, "root ::= \"a\\\"b\" | \"ü\""},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", GrammarKind::kEbnf, "root ::= \"a\""},
      {R"("guided_json":"{\"z\":1}")", GrammarKind::kJsonSchema, R"({"z":1})"},
      {R"("guided_regex":"b")", GrammarKind::kRegex, "b"},
      {R"("guided_choice":["x"])", GrammarKind::kEbnf, "root ::= \"x\""},
      {R"("guided_grammar":"root ::= \"c\"")", GrammarKind::kEbnf, "root ::= \"c\""},
      {R"("json_schema":"{\"y\":1}")", GrammarKind::kJsonSchema, R"({"y":1})"},
      {R"("regex":"d")", GrammarKind::kRegex, "d"},
      {R"("ebnf":"root ::= \"e\"")", GrammarKind::kEbnf, "root ::= \"e\""},
  };
  for (const Case& one : cases) {
    const HttpResponse response = post("/v1/chat/completions", body_of(one.body));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(engine_->last_grammar().kind, one.kind) << one.body;
    EXPECT_EQ(engine_->last_grammar().text, one.text) << one.body;
  }
  ASSERT_EQ(post("/v1/completions", R"({"prompt":"x","guided_regex":"f"})").status, 200);
  EXPECT_EQ(engine_->last_grammar().text, "f");
  ASSERT_EQ(
      post("/v1/chat/completions", body_of(R"("response_format":{"type":"text"},"structured_outputs":{})")).status,
      200);
  EXPECT_EQ(engine_->last_grammar().text, "f");  // nothing was asked for
}

TEST_F(ResponseFormatTest, NamesTheFieldAtFault) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"("response_format":{"type":"json_schema"})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":3}})", "response_format"},
      {R"("response_format":{"type":"xml"})", "response_format"},
      {R"("response_format":"json_object")", "response_format"},
      {R"("structured_outputs":[])", "structured_outputs"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"choice":[1]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"choice":[""]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"whitespace_pattern":"x"})", "structured_outputs.whitespace_pattern"},
      {R"("guided_json":3)", "guided_json"},
      {R"("guided_regex":["a"])", "guided_regex"},
      {R"("regex":"a","ebnf":"b")", "ebnf"},
      {R"("guided_regex":"refused")", "guided_regex"},  // by the engine
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"refused":1}}},"stream":true)",
       "response_format"},
  };
  for (const auto& [body, field] : cases) {
    const HttpResponse response = post("/v1/chat/completions", body_of(body));
    EXPECT_EQ(response.status, 400) << body << response.body;
    EXPECT_EQ(json::parse(response.body)["error"]["param"], field) << response.body;
  }
  // Clients shorten the conversation where the context is exceeded: a long schema is something else.
  const json error = json::parse(post("/v1/chat/completions", body_of(R"("guided_regex":"enormous")")).body)["error"];
  EXPECT_EQ(error["param"], "guided_regex");
  EXPECT_TRUE(error["code"].is_null()) << error;
}

}  // namespace
}  // namespace fovea::server
