// Grammars over a vocabulary of bytes and a few longer tokens: what a matcher allows, what is refused, hostile input.
#include "engine/grammar/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kEnd = 256;      // the stop token
constexpr std::int32_t kSpecial = 257;  // a special token, which no grammar may produce

std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), {"", ""});
  for (const char* text : {"{\"", "\": ", "true", "false", "null", "\", \"", "12", "ab", "<tool_call>", "\n", "é"}) {
    tokens.emplace_back(text);
  }
  return tokens;
}

GrammarCompiler make_compiler() { return GrammarCompiler(vocabulary, {kEnd}); }

bool bit(std::span<const std::int32_t> mask, std::int32_t token) {
  return mask.empty() || ((mask[static_cast<std::size_t>(token / 32)] >> (token % 32)) & 1) != 0;
}

// Feeds the text byte by byte; how many bytes were allowed.
std::size_t feed(GrammarMatcher& matcher, std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto token = static_cast<std::int32_t>(static_cast<unsigned char>(text[i]));
    auto allowed = matcher.allowed();
    EXPECT_TRUE(allowed.ok()) << allowed.status().to_string();
    if (!bit(*allowed, token)) return i;
    EXPECT_TRUE(matcher.accept(token).ok());
  }
  return text.size();
}

bool matches(GrammarCompiler& compiler, const GrammarSpec& spec, std::string_view text) {
  auto grammar = compiler.compile(spec);
  EXPECT_TRUE(grammar.ok()) << grammar.status().to_string();
  if (!grammar.ok()) return false;
  GrammarMatcher matcher(*grammar);
  if (feed(matcher, text) != text.size()) return false;
  auto allowed = matcher.allowed();
  EXPECT_TRUE(allowed.ok());
  if (!bit(*allowed, kEnd)) return false;
  EXPECT_TRUE(matcher.accept(kEnd).ok());
  EXPECT_TRUE(matcher.finished());
  return true;
}

TEST(Grammar, AcceptsItsLanguageAndNothingElse) {
  GrammarCompiler compiler = make_compiler();
  const GrammarSpec schema = {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"b":{"type":"integer"},
      "a":{"enum":["x","y"]}},"required":["b","a"]})"};
  EXPECT_TRUE(matches(compiler, schema, R"({"b": -12, "a": "y"})"));
  EXPECT_FALSE(matches(compiler, schema, R"({"a": "y", "b": 1})"));  // the order of the schema
  EXPECT_FALSE(matches(compiler, schema, R"({"b": 1, "a": "z"})"));
  EXPECT_FALSE(matches(compiler, schema, R"({"b": 1.5, "a": "x"})"));
  EXPECT_FALSE(matches(compiler, schema, R"({"b": 1, "a": "x", "c": 1})"));
  EXPECT_TRUE(matches(compiler, {GrammarKind::kJsonSchema, R"({"type":"object"})"}, R"({"k": [1, {"z": null}]})"));
  EXPECT_TRUE(matches(compiler, {GrammarKind::kRegex, "[0-9]{3}-(a|b)+"}, "123-abba"));
  EXPECT_FALSE(matches(compiler, {GrammarKind::kRegex, "[0-9]{3}-(a|b)+"}, "123-"));
  EXPECT_TRUE(matches(compiler, {GrammarKind::kEbnf, R"(root ::= "yes" | "no" rest
rest ::= "!"*)"},
                      "no!!"));
  EXPECT_TRUE(matches(compiler,
                      {GrammarKind::kStructuralTag,
                       R"({"type":"structural_tag","format":{"type":"tag","begin":"<t>","content":
      {"type":"json_schema","json_schema":{"type":"boolean"}},"end":"</t>"}})"},
                      "<t>true</t>"));
}

TEST(Grammar, StringsAreJson) {
  GrammarCompiler compiler = make_compiler();
  const auto schema = [](const std::string& text) { return GrammarSpec{GrammarKind::kJsonSchema, text}; };
  for (const char* bounded : {R"({"type":"string","maxLength":3})", R"({"type":"string","minLength":2})",
                              R"({"type":"string","minLength":1,"maxLength":400})",
                              R"({"type":["null","string"],"minLength":2,"maxLength":2})"}) {
    EXPECT_TRUE(matches(compiler, schema(bounded), "\"ab\"")) << bounded;
    EXPECT_TRUE(matches(compiler, schema(bounded), "\"\u00e9b\"")) << bounded;
    EXPECT_FALSE(matches(compiler, schema(bounded), "\"a\t\"")) << bounded;
    EXPECT_FALSE(matches(compiler, schema(bounded), std::string("\"a\x01\"", 4))) << bounded;
    EXPECT_FALSE(matches(compiler, schema(bounded), "\"a\\\"")) << bounded;
  }
  EXPECT_FALSE(matches(compiler, schema(R"({"type":"string","maxLength":3})"), "\"abcd\""));
  EXPECT_FALSE(matches(compiler, schema(R"({"type":"string","minLength":3})"), "\"ab\""));
  const std::string named =
      R"({"type":"object","properties":{"maxLength":{"const":{"minLength":2}}},"required":["maxLength"]})";
  EXPECT_TRUE(matches(compiler, schema(named), R"({"maxLength": {"minLength":2}})"));
  EXPECT_TRUE(matches(compiler, schema(R"({"type":"string","pattern":"^.{2,8}$"})"), "\"a'\""));
  EXPECT_TRUE(matches(compiler, schema(R"({"type":"string","pattern":"^\u00e9+$"})"), "\"\u00e9\""));
  for (const char* pattern : {R"(^.{0,500}$)", R"(^a\\n$)", R"(^[^x]\u00e9$)"}) {
    const auto refused = compiler.compile(schema(fmt::format(R"({{"type":"string","pattern":"{}"}})", pattern)));
    EXPECT_THAT(refused.status().message(), HasSubstr("pattern")) << pattern;
  }
}

TEST(Grammar, HoldsTagsInFreeText) {
  GrammarCompiler compiler = make_compiler();
  const GrammarSpec spec = {GrammarKind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"triggered_tags",
      "triggers":["<t>"],"at_least_one":false,"stop_after_first":false,"tags":[
      {"type":"tag","begin":"<t>f ","content":{"type":"json_schema","json_schema":{"type":"boolean"}},"end":"</t>"},
      {"type":"tag","begin":"<t>g ","content":{"type":"any_text"},"end":"</t>"}]}})"};
  EXPECT_TRUE(matches(compiler, spec, "any <text> at all"));
  EXPECT_TRUE(matches(compiler, spec, "It is <t>f true</t> or <t>g !</t>."));
  EXPECT_FALSE(matches(compiler, spec, "It is <t>f 1</t>"));
  EXPECT_FALSE(matches(compiler, spec, "It is <t>h true</t>"));
}

TEST(Grammar, MasksWholeTokens) {
  GrammarCompiler compiler = make_compiler();
  const auto grammar = compiler.compile({GrammarKind::kJsonSchema, R"({"type":["boolean","string"]})"});
  ASSERT_TRUE(grammar.ok());
  GrammarMatcher matcher(*grammar);
  auto allowed = matcher.allowed();
  ASSERT_TRUE(allowed.ok());
  EXPECT_TRUE(bit(*allowed, 260));  // true
  EXPECT_TRUE(bit(*allowed, '"'));
  EXPECT_FALSE(bit(*allowed, 258));  // {"
  EXPECT_FALSE(bit(*allowed, kEnd));
  EXPECT_FALSE(bit(*allowed, kSpecial));
  ASSERT_TRUE(matcher.accept('"').ok());
  allowed = matcher.allowed();
  ASSERT_TRUE(allowed.ok());
  EXPECT_FALSE(bit(*allowed, kSpecial));
  EXPECT_FALSE(bit(*allowed, '\n'));
  EXPECT_TRUE(bit(*allowed, 268));  // é
  EXPECT_EQ(matcher.accept('\n').code(), StatusCode::kInternal);
  EXPECT_TRUE(matcher.accept('"').ok());  // a refused token changes nothing
}

TEST(Grammar, EndsByItselfWhereNoTokenDoes) {
  GrammarCompiler compiler(vocabulary, {});
  const auto grammar = compiler.compile({GrammarKind::kRegex, "ab?"});
  ASSERT_TRUE(grammar.ok());
  GrammarMatcher matcher(*grammar);
  EXPECT_FALSE(matcher.finished());
  ASSERT_TRUE(matcher.accept('a').ok());
  EXPECT_TRUE(matcher.finished());
}

TEST(Grammar, SaysWhatIsWrong) {
  GrammarCompiler compiler = make_compiler();
  const auto refusal = [&](GrammarKind kind, std::string text) {
    const auto refused = compiler.compile({kind, std::move(text)});
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().message().find(".cc"), std::string::npos) << refused.status().message();
    return refused.status().message();
  };
  EXPECT_THAT(refusal(GrammarKind::kRegex, "("), HasSubstr("grammar"));
  EXPECT_THAT(refusal(GrammarKind::kRegex, ""), HasSubstr("empty"));
  EXPECT_THAT(refusal(GrammarKind::kEbnf, "root ::= nowhere"), HasSubstr("nowhere"));
  EXPECT_THAT(refusal(GrammarKind::kEbnf, "other ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"not":{}}}})"),
              HasSubstr("not"));
  // What only xgrammar finds out, and would ignore.
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"type":"number","multipleOf":0.5})"), HasSubstr("multipleOf"));
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"type":"string","format":"uuid","minLength":3})"),
              HasSubstr("minLength"));
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
              HasSubstr("oneOf"));
  EXPECT_THAT(refusal(GrammarKind::kStructuralTag, "{}"), HasSubstr("grammar"));
  EXPECT_THAT(refusal(GrammarKind::kStructuralTag,
                      R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":{"not":{}}}})"),
              HasSubstr("not"));
}

// Each is answered, either way, and does not take the process with it.
TEST(Grammar, SurvivesHostileInput) {
  GrammarCompiler compiler = make_compiler();
  const auto repeat = [](int times, const std::string& text) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  for (const char* regex :
       {"(a*)*b", "(a|a)*(a|a)*(a|a)*b", "(a|b)*a(a|b){18}", "a{20000}", "(a{0,140}){0,140}", "[^\\x00-\\x7f]{0,2000}",
        "\\p{L}+", "a{5,2}", "[z-a]", "\\", "(?=a)b", "(?<!a)b", "\\1", "$a^"}) {
    (void)compiler.compile({GrammarKind::kRegex, regex});
  }
  (void)compiler.compile({GrammarKind::kRegex, repeat(30, "(a|b?)") + repeat(30, "a")});
  (void)compiler.compile({GrammarKind::kRegex, repeat(150, "(") + "a" + repeat(150, ")*")});
  (void)compiler.compile({GrammarKind::kEbnf, "root ::= root"});
  (void)compiler.compile({GrammarKind::kEbnf, "root ::= root \"a\" | \"a\" root | \"\""});
  (void)compiler.compile({GrammarKind::kEbnf, "root ::= a{100}\na ::= b{100}\nb ::= \"x\"{50}"});
  (void)compiler.compile({GrammarKind::kEbnf, "root ::= " + repeat(150, "(") + "\"a\"" + repeat(150, ")")});
  EXPECT_FALSE(compiler.compile({GrammarKind::kEbnf, std::string(100'000, 'a')}).ok());
  EXPECT_FALSE(compiler.compile({GrammarKind::kRegex, "((a{100}){100}){100}"}).ok());
  PhiloxRng rng(7, 1);
  const std::string_view alphabet = "ab(){}[]|*+?\\.^$,0123456789-\":=\n ";
  for (int i = 0; i < 200; ++i) {
    std::string text = i % 2 == 0 ? "" : "root ::= ";
    for (int k = 0; k < 24; ++k) text += alphabet[rng.next_below(static_cast<std::uint32_t>(alphabet.size()))];
    (void)compiler.compile({i % 2 == 0 ? GrammarKind::kRegex : GrammarKind::kEbnf, text});
  }
}

TEST(Grammar, KeepsWhatItCompiled) {
  GrammarCompiler compiler = make_compiler();
  const GrammarSpec spec = {GrammarKind::kRegex, "a+"};
  const auto first = compiler.compile(spec);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->get(), compiler.compile(spec)->get());
  for (int i = 1; i <= 80; ++i) ASSERT_TRUE(compiler.compile({GrammarKind::kRegex, fmt::format("a{{{}}}", i)}).ok());
  EXPECT_NE(first->get(), compiler.compile(spec)->get());
}

TEST(Grammar, IsSharedByThreads) {
  GrammarCompiler compiler = make_compiler();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&compiler, i] {
      for (int k = 0; k < 5; ++k) {
        EXPECT_TRUE(matches(compiler, {GrammarKind::kRegex, fmt::format("[a-c]{{{}}}x", k)}, std::string(k, 'b') + "x"))
            << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fovea
