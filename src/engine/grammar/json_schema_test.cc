// Which schemas are refused before anything is compiled, and by which name.
#include "engine/grammar/json_schema.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/grammar/repetition.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& schema) { return check_json_schema(schema).message(); }

std::string nested(int depth, const std::string& open, const std::string& inner, const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += inner;
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonSchema, TakesWhatClientsSend) {
  for (const char* schema : {
           R"({})",
           R"(true)",
           R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"type":["integer","null"]}},
               "required":["a"],"additionalProperties":false,"title":"T","$schema":"x"})",
           R"({"$defs":{"P":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/P"},{"type":"null"}]}}}},
               "$ref":"#/$defs/P"})",
           R"({"properties":{"a":{"enum":["x",1,null]},"b":{"const":3,"type":"integer"}}})",
           R"({"type":"array","items":{"type":"number","minimum":0.5},"minItems":1,"maxItems":3})",
           R"({"type":"string","format":"date-time"})",
           R"({"type":"object","additionalProperties":{"type":"integer"}})",
       }) {
    EXPECT_EQ(refusal(schema), "") << schema;
  }
}

TEST(JsonSchema, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"array","items":{},"uniqueItems":true})", "\"uniqueItems\""},
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "schema.properties.a: the keyword \"not\""},
      {R"({"if":{},"then":{}})", "\"if\""},
      {R"({"type":"object","dependentRequired":{}})", "\"dependentRequired\""},
      {R"({"type":"array","contains":{}})", "\"contains\""},
      {R"({"allOf":[{"type":"object"},{"type":"object"}]})", "allOf"},
      {R"({"type":"object","anyOf":[{"type":"object"}]})", "\"type\" beside \"anyOf\""},
      {R"({"$ref":"http://example.com/x"})", "$ref"},
      {R"({"$ref":"#/$defs/none","$defs":{}})", "$ref"},
      {R"({"type":"string","format":"stock-symbol"})", "\"stock-symbol\""},
      {R"({"type":"string","enum":["a",1]})", "1 is not of the type"},
      {R"({"minimum":3})", "needs a \"type\""},
      {R"({"type":"text"})", "schema.type"},
      {R"({"type":"string","maxLength":1000000000})", "maxLength"},
      {R"({"type":"array","items":{},"minItems":-1})", "minItems"},
      {R"({"type":"string","pattern":"((a{100}){100}){100}"})", "pattern"},
      {R"({"type":"object","properties":{"a":{}},"patternProperties":{"^a":{}}})", "patternProperties"},
      {R"({"type":"object","properties":{"a":{}},"propertyNames":{"pattern":"^a"}})", "propertyNames"},
      // A key that comes twice is one property.
      {R"({"type":"object","patternProperties":{"^z$":{}},"minProperties":2})", "repeating"},
      {R"({"type":"object","minProperties":2})", "minProperties\" is 2"},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":true,"minProperties":2})", "list 1"},
      {R"({"type":"object","properties":{"a":{}},"required":["a","b"]})", "schema.required names \"b\""},
      {R"({"type":"object","required":["b"],"additionalProperties":{"type":"null"}})", "required names \"b\""},
      {R"({"enum":[]})", "enum"},
      {R"({"properties":[]})", "properties"},
      {R"([1])", "object"},
      {R"({"a")", "JSON"},
  };
  for (const auto& [schema, name] : cases) EXPECT_THAT(refusal(schema), HasSubstr(name)) << schema;
}

TEST(JsonSchema, BoundsWhatWouldNotEnd) {
  EXPECT_THAT(refusal(R"({"$ref":"#"})"), HasSubstr("refers to itself"));
  EXPECT_THAT(
      refusal(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})"),
      HasSubstr("refers to itself"));
  std::string doubling = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 60; ++i) {
    doubling += fmt::format(R"("{0}":{{"anyOf":[{{"$ref":"#/$defs/{1}"}},{{"$ref":"#/$defs/{1}"}}]}},)", i, i + 1);
  }
  EXPECT_THAT(refusal(doubling + R"("60":{"type":"null"}}})"), HasSubstr("more than"));
  EXPECT_NE(refusal(nested(1000, R"({"items":)", "{}", "}")), "");
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 500; ++i) chain += fmt::format(R"("{}":{{"items":{{"$ref":"#/$defs/{}"}}}},)", i, i + 1);
  EXPECT_THAT(refusal(chain + R"("500":{}}})"), HasSubstr("deeper"));
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 3000; ++i) wide += fmt::format(R"({}"p{}":{{"type":"string"}})", i == 0 ? "" : ",", i);
  EXPECT_THAT(refusal(wide + "}}"), HasSubstr("more than"));
}

TEST(Repetition, CountsWhatIsWrittenOut) {
  for (const char* fine : {"a{20000}", "[a-z]{3,10}", "x{", "x{,}", "(ab|c){100}", R"(\{9999999\})", "[{9999999}]"}) {
    EXPECT_TRUE(check_repetitions(fine, false).ok()) << fine;
  }
  for (const char* bomb : {"a{20001}", "(a{200}){200}", "((a{30}){30}){30}", "a{99999999999999999999999}",
                           "a{150}{150}", "(((((a{9}){9}){9}){9}){9}){9}"}) {
    EXPECT_FALSE(check_repetitions(bomb, false).ok()) << bomb;
  }
  EXPECT_TRUE(check_repetitions(R"(root ::= "{999999}" [a-z]{3})", true).ok());
  EXPECT_FALSE(check_repetitions(R"(root ::= "abc"{9999})", true).ok());
  EXPECT_FALSE(check_repetitions(std::string(300, '(') + "a" + std::string(300, ')'), false).ok());
}

TEST(Repetition, PatternsAreBoundedAsTheyStand) {
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += "(a)*";
  EXPECT_EQ(check_repetitions(many, false).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_repetitions(many, true).ok());
  EXPECT_TRUE(check_repetitions(std::string(10'000, 'a'), false).ok());
  EXPECT_EQ(without_costly_counts(many, false), many);  // in time that grows with the text
}

TEST(Repetition, DropsCountsThatCost) {
  const auto regex = [](const char* text) { return without_costly_counts(text, false); };
  for (const char* cheap : {"a{16}", "[0-9]{4}-[0-9]{2}", "x{b}", R"(\{999\})", "[{999}]", "plain", "(a{4}){4}"}) {
    EXPECT_EQ(regex(cheap), cheap);
  }
  EXPECT_EQ(regex("a{17}b{3}"), "a*b{3}");
  EXPECT_EQ(regex(".{3,}"), ".{3,}");
  EXPECT_EQ(regex("[a{99}]{99,}x"), "[a{99}]*x");
  EXPECT_EQ(regex("(a{30}|b)c{30}(d{30})?"), "(a*|b)c*(d*)?");
  for (const char* nested : {"(a{99}){99}", "(a{99}b)*", "((a{99}))+", "(a|b){99}", R"(root ::= x{99}
x ::= "a"{99})"}) {
    EXPECT_EQ(without_costly_counts(nested, nested[0] == 'r'), nested);
  }
  EXPECT_EQ(without_costly_counts(R"(root ::= "a"{99} root | "b")", true), R"(root ::= "a"{99} root | "b")");
  EXPECT_EQ(without_costly_counts(R"(root ::= "{999}" "a"{99})", true), R"(root ::= "{999}" "a"*)");
}

}  // namespace
}  // namespace fovea
