// Grammars over a vocabulary of bytes and a few longer tokens: what a matcher allows, what is refused, hostile input.
#include "engine/grammar/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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
    auto accepted = matcher.accept(token);
    EXPECT_TRUE(accepted.ok()) << accepted.status().to_string();
    if (!accepted.ok() || !*accepted) return i;
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
  auto ended = matcher.accept(kEnd);
  EXPECT_TRUE(ended.ok()) << ended.status().to_string();
  if (!ended.ok() || !*ended) return false;
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
  EXPECT_EQ(matcher.accept('\n').status().code(), StatusCode::kInternal);
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

// Answers of tokens drawn at random from the mask hold to counts that are no part of it.
TEST(Grammar, CountsAreKeptToWhereMasksDoNotHoldThem) {
  GrammarCompiler compiler = make_compiler();
  const auto draw = [&](const GrammarSpec& spec, std::uint64_t seed, int* refused) {
    const auto grammar = compiler.compile(spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().to_string();
    const std::vector<std::string> tokens = vocabulary();
    std::string text;
    if (!grammar.ok()) return text;
    GrammarMatcher matcher(*grammar);
    PhiloxRng rng(seed);
    for (int i = 0; i < 4000; ++i) {
      const auto allowed = matcher.allowed();
      EXPECT_TRUE(allowed.ok());
      std::vector<std::int32_t> may;
      for (std::int32_t id = 0; id < static_cast<std::int32_t>(tokens.size()); ++id) {
        if (bit(*allowed, id) && id != kSpecial) may.push_back(id);
      }
      if (may.empty()) {
        ADD_FAILURE() << "nothing may follow " << text;
        return text;
      }
      const std::int32_t token = may[rng.next_below(static_cast<std::uint32_t>(may.size()))];
      const auto accepted = matcher.accept(token);
      EXPECT_TRUE(accepted.ok()) << accepted.status().to_string();
      if (!accepted.ok() || token == kEnd) {
        if (accepted.ok() && *accepted) return text;
      }
      if (!*accepted) {
        ++*refused;
        EXPECT_FALSE(bit(*matcher.allowed(), token)) << text << tokens[token];
        continue;
      }
      text += tokens[token];
    }
    ADD_FAILURE() << "no end after " << text;
    return text;
  };
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string regex = draw({GrammarKind::kRegex, "[ab]{40,60}"}, seed, &refused);
    EXPECT_TRUE(regex.size() >= 40 && regex.size() <= 60) << regex;
    EXPECT_EQ(regex.find_first_not_of("ab"), std::string::npos) << regex;
    const std::string ebnf =
        draw({GrammarKind::kEbnf, "root ::= \"<{9}\" item{20}\nitem ::= [0-9] \",\""}, seed, &refused);
    EXPECT_EQ(ebnf.size(), 44u) << ebnf;
    EXPECT_EQ(std::count(ebnf.begin(), ebnf.end(), ','), 20) << ebnf;
    const std::string bounded =
        draw({GrammarKind::kJsonSchema, R"({"type":"string","minLength":3,"maxLength":5})"}, seed, &refused);
    const std::string pattern =
        draw({GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^[a-c]{20,24}$"})"}, seed, &refused);
    EXPECT_TRUE(pattern.size() >= 22 && pattern.size() <= 26) << pattern;
    // Characters, not bytes.
    EXPECT_EQ(bounded.find('\\'), std::string::npos) << bounded;
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    const auto characters =
        static_cast<std::ptrdiff_t>(bounded.size()) - std::count_if(bounded.begin(), bounded.end(), continues);
    EXPECT_TRUE(characters >= 5 && characters <= 7) << bounded;
    const std::string tagged = draw({GrammarKind::kStructuralTag,
                                     R"({"type":"structural_tag","format":{"type":"tag","begin":"<","content":
        {"type":"json_schema","json_schema":{"type":"string","minLength":30,"maxLength":30}},"end":">"}})"},
                                    seed, &refused);
    EXPECT_EQ(tagged.substr(0, 2), "<\"");
    EXPECT_TRUE(tagged.ends_with("\">")) << tagged;
  }
  EXPECT_GT(refused, 100);
}

TEST(Grammar, RefusesWhatWouldTakeLongAndSaysTheLimit) {
  GrammarCompiler compiler = make_compiler();
  std::string wide;
  for (int i = 0; i < 12000; ++i) wide += i % 2 == 0 ? "." : "x";
  const auto refused = compiler.compile({GrammarKind::kRegex, wide});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 32768 are allowed"));
  std::string ambiguous;
  while (ambiguous.size() < 19'000) ambiguous += "(a|b?)";
  const auto pattern =
      compiler.compile({GrammarKind::kJsonSchema, fmt::format(R"({{"type":"string","pattern":"^{}$"}})", ambiguous)});
  EXPECT_EQ(pattern.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pattern.status().message(), HasSubstr("too long to compile"));
  const auto counted = compiler.compile({GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^[a-z]{3,9999}$"})"});
  EXPECT_THAT(counted.status().message(), HasSubstr("at most 2000 are allowed"));
  std::string many;
  for (int i = 0; i < 6; ++i)
    many += fmt::format(R"({}"p{}":{{"type":"string","pattern":"^[a-z]{{2000}}$"}})", i ? "," : "", i);
  const auto together =
      compiler.compile({GrammarKind::kJsonSchema, fmt::format(R"({{"type":"object","properties":{{{}}}}})", many)});
  EXPECT_THAT(together.status().message(), HasSubstr("10000 times together"));
  // A parser for each of very many states.
  std::string some;
  for (int i = 0; i < 200; ++i) some += fmt::format(R"({}"p{}":{{"type":"string","maxLength":5}})", i ? "," : "", i);
  const auto half = compiler.compile(
      {GrammarKind::kJsonSchema,
       fmt::format(R"({{"type":"object","properties":{{{}}},"additionalProperties":false,"minProperties":100}})",
                   some)});
  EXPECT_THAT(half.status().message(), HasSubstr("too long to compile"));
  for (const char* tag : {R"({"type":"regex","pattern":"((a{100}){100}){100}"})",
                          R"({"type":"grammar","grammar":"root ::= ((\"a\"{100}){100}){100}"})"}) {
    const auto in_tag =
        compiler.compile({GrammarKind::kStructuralTag, fmt::format(R"({{"type":"structural_tag","format":{}}})", tag)});
    EXPECT_THAT(in_tag.status().message(), HasSubstr("written out")) << tag;
  }
}

// Many ways to read a text, one automaton.
TEST(Grammar, RepetitionsInOneAnotherCostWhatOneDoes) {
  GrammarCompiler compiler = make_compiler();
  for (const char* regex : {"([a-z]+)+x", "(a|b)*(a|b)*(a|b)*x", "([a-z]+ ?)+x", "((a+b*)+)*x"}) {
    const auto grammar = compiler.compile({GrammarKind::kRegex, regex});
    ASSERT_TRUE(grammar.ok()) << regex << grammar.status().to_string();
    GrammarMatcher matcher(*grammar);
    std::string text;
    for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? 'b' : 'a';
    EXPECT_EQ(feed(matcher, "a" + text + "x"), text.size() + 2) << regex;
    EXPECT_TRUE(bit(*matcher.allowed(), kEnd)) << regex;
  }
  // What is wrong, and what cannot be kept to, is so for an automaton too.
  EXPECT_FALSE(compiler.compile({GrammarKind::kRegex, "(a(?=b)b)*"}).ok());
  EXPECT_FALSE(compiler.compile({GrammarKind::kRegex, "(a$b)+"}).ok());
  EXPECT_TRUE(matches(compiler, {GrammarKind::kRegex, R"((\.|\\|"|[^a-z])+)"}, ".\\\"\n."));
  EXPECT_FALSE(matches(compiler, {GrammarKind::kRegex, R"((\.|\\|")+)"}, ".a"));
}

TEST(Grammar, SaysThatNothingMatches) {
  GrammarCompiler compiler = make_compiler();
  for (const char* empty : {"root ::= root", "root ::= \"a\" x\nx ::= x"}) {
    const auto grammar = compiler.compile({GrammarKind::kEbnf, empty});
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << empty;
      continue;
    }
    GrammarMatcher matcher(*grammar);
    ASSERT_TRUE(*matcher.accept('a'));
    EXPECT_THAT(matcher.allowed().status().message(), HasSubstr("behind token 1")) << empty;
  }
  EXPECT_THAT(compiler.compile({GrammarKind::kEbnf, "root ::= root"}).status().message(), HasSubstr("matches no text"));
}

// ECMA 262's WhiteSpace and LineTerminator, whichever way xgrammar compiles the pattern.
TEST(Grammar, SpacesAreWhatEcma262Lists) {
  GrammarCompiler compiler = make_compiler();
  const std::vector<std::string> spaces = {"\t",     "\n",     "\v",     "\f",     "\r",     " ",
                                           "\u00a0", "\u1680", "\u2000", "\u2005", "\u200a", "\u2028",
                                           "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"};
  const std::vector<std::string> others = {"a",      "\x08",   "\x0e",   "!",      "\u0085",
                                           "\u009f", "\u00a1", "\u180e", "\u200b", "\u2027",
                                           "\u2030", "\u2060", "\u3001", "\ufefe", "\U0010ffff"};
  const auto pattern = [](std::string_view regex, bool repeated, bool in_json) {
    std::string text = repeated ? fmt::format("({})+", regex) : std::string(regex);
    if (!in_json) return GrammarSpec{GrammarKind::kRegex, text};
    for (std::size_t at = 0; (at = text.find('\\', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
    return GrammarSpec{GrammarKind::kJsonSchema, fmt::format(R"({{"type":"string","pattern":"^{}$"}})", text)};
  };
  for (const bool in_json : {false, true}) {
    for (const bool repeated : {false, true}) {
      const auto expect = [&](std::string_view regex, const std::string& text, bool matched) {
        const GrammarSpec spec = pattern(regex, repeated, in_json);
        const bool raw = in_json && static_cast<unsigned char>(text[0]) < 0x20;  // JSON escapes those
        EXPECT_EQ(matches(compiler, spec, in_json ? '"' + text + '"' : text), matched && !raw) << spec.text << text;
      };
      for (const std::string& space : spaces) {
        expect(R"(\s)", space, true);
        expect(R"([\s-])", space, true);
        expect(R"([x\s])", space, true);
        expect(R"(\S)", space, false);
        expect(R"([\S])", space, false);
        expect(R"([^\s])", space, false);
        expect(R"([^\S])", space, true);
      }
      for (const std::string& other : others) {
        expect(R"(\s)", other, false);
        expect(R"([\s])", other, false);
        expect(R"(\S)", other, true);
        expect(R"([\Sx])", other, true);
        expect(R"([^\s])", other, true);
      }
      // Beside a class a dash is a dash.
      for (const char* text : {" ", "-", "a"}) {
        expect(R"([\s-a])", text, true);
        expect(R"([a-\s])", text, true);
      }
      expect(R"([\s-a])", "b", false);
    }
  }
  // What is escaped itself is no class, and members of a structural tag and of a schema are patterns as well.
  EXPECT_TRUE(matches(compiler, {GrammarKind::kRegex, R"(\\s)"}, R"(\s)"));
  EXPECT_TRUE(matches(compiler,
                      {GrammarKind::kStructuralTag,
                       R"({"type":"structural_tag","format":{"type":"tag","begin":"<t>","content":
      {"type":"regex","pattern":"(\\s)+"},"end":"</t>"}})"},
                      "<t>\u2003</t>"));
  EXPECT_TRUE(matches(compiler,
                      {GrammarKind::kJsonSchema, R"({"type":"object","patternProperties":{"^\\s$":{"type":"null"}}})"},
                      "{\"\u2003\": null}"));
}

// Properties may have the names of keywords that hold values.
TEST(Grammar, StringsOfPropertiesNamedAsKeywordsAreJson) {
  GrammarCompiler compiler = make_compiler();
  for (const char* name : {"default", "const", "enum", "example", "pattern", "maxLength"}) {
    const GrammarSpec spec = {
        GrammarKind::kJsonSchema,
        fmt::format(
            R"({{"type":"object","properties":{{"{0}":{{"type":"string","maxLength":3}}}},"required":["{0}"]}})",
            name)};
    EXPECT_TRUE(matches(compiler, spec, fmt::format(R"({{"{}": "ab"}})", name))) << name;
    EXPECT_FALSE(matches(compiler, spec, fmt::format("{{\"{}\": \"a\t\"}}", name))) << name;
  }
}

// Rules that can be read in ever more ways end the answer that they are for.
TEST(Grammar, EndsAnAnswerThatTakesTooMuchWork) {
  GrammarCompiler compiler = make_compiler();
  const auto grammar = compiler.compile({GrammarKind::kEbnf, "root ::= s\ns ::= s s | \"a\""});
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  GrammarMatcher matcher(*grammar);
  Status end;
  int tokens = 0;
  for (; end.ok() && tokens < 5000; ++tokens) end = matcher.accept('a').status();
  EXPECT_GT(tokens, 100);
  EXPECT_EQ(end.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(end.message(), HasSubstr("too much work to follow at token"));
  EXPECT_EQ(matcher.allowed().status().message(), end.message());
  EXPECT_EQ(matcher.forced(), "");
  // Another answer of the same grammar goes on.
  GrammarMatcher other(*grammar);
  EXPECT_EQ(feed(other, "aaaa"), 4u);
}

TEST(Grammar, DraftsNeverEndAnAnswer) {
  GrammarCompiler compiler = make_compiler();
  const auto grammar = compiler.compile({GrammarKind::kEbnf, "root ::= s\ns ::= s s | \"a\""});
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  GrammarMatcher matcher(*grammar);
  ASSERT_EQ(feed(matcher, std::string(60, 'a')), 60u);
  const std::vector<std::int32_t> draft(6, 'a');
  std::size_t fitting = draft.size();
  for (int i = 0; i < 100000 && fitting != 0; ++i) fitting = matcher.fitting(draft);
  EXPECT_EQ(fitting, 0u);  // what they may take is used up
  EXPECT_EQ(matcher.forced(), "");
  EXPECT_EQ(feed(matcher, "aaaa"), 4u);
}

TEST(Grammar, TellsWhatMustComeNext) {
  GrammarCompiler compiler = make_compiler();
  const auto forced = [&](const GrammarSpec& spec, std::string_view after) {
    const auto grammar = compiler.compile(spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().to_string();
    GrammarMatcher matcher(*grammar);
    EXPECT_EQ(feed(matcher, after), after.size());
    const std::string text = matcher.forced();
    EXPECT_EQ(matcher.forced(), text);
    EXPECT_EQ(feed(matcher, text), text.size());  // nothing was taken
    return text;
  };
  const GrammarSpec schema = {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"name":{"type":"integer"},
      "size":{"enum":["small","smart"]}},"required":["name","size"]})"};
  EXPECT_EQ(forced(schema, ""), R"({"name": )");
  EXPECT_EQ(forced(schema, R"({"name": 1)"), "");
  EXPECT_EQ(forced(schema, R"({"name": 1,)"), R"( "size": "sma)");
  EXPECT_EQ(forced({GrammarKind::kRegex, "ab?"}, "a"), "");
  EXPECT_EQ(forced({GrammarKind::kEbnf, "root ::= \"a\" root"}, "").size(), 64u);  // it has no end
}

TEST(Grammar, TellsHowManyTokensFit) {
  GrammarCompiler compiler = make_compiler();
  const auto grammar = compiler.compile({GrammarKind::kRegex, "a(b|c)d"});
  ASSERT_TRUE(grammar.ok());
  GrammarMatcher matcher(*grammar);
  const std::int32_t all[] = {'a', 'c', 'd', kEnd, 'a'};
  EXPECT_EQ(matcher.fitting(all), 4u);
  EXPECT_EQ(matcher.fitting(std::span(all).subspan(1)), 0u);
  EXPECT_EQ(matcher.fitting(std::vector<std::int32_t>{'a', 'd'}), 1u);
  EXPECT_EQ(matcher.fitting(std::vector<std::int32_t>{kSpecial}), 0u);
  EXPECT_EQ(matcher.fitting({}), 0u);
  EXPECT_EQ(feed(matcher, "abd"), 3u);  // nothing was taken
}

// While one thread compiles what takes long, another is done with what does not.
TEST(Grammar, CompilesSeveralAtOnce) {
  GrammarCompiler compiler = make_compiler();
  ASSERT_TRUE(compiler.compile({GrammarKind::kRegex, "first"}).ok());
  std::atomic<bool> slow_done{false};
  std::thread slow([&] {
    EXPECT_TRUE(compiler.compile({GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^[a-z]{3,2000}$"})"}).ok());
    slow_done = true;
  });
  int done = 0;  // in the meantime
  for (; !slow_done; ++done) ASSERT_TRUE(compiler.compile({GrammarKind::kRegex, fmt::format("x{}", done)}).ok());
  slow.join();
  EXPECT_GT(done, 1);
}

// Threads that ask for the same get the same.
TEST(Grammar, CompilesTheSameOnce) {
  GrammarCompiler compiler = make_compiler();
  const GrammarSpec spec = {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^[a-z]{3,1000}$"})"};
  std::vector<const Grammar*> grammars(4);
  std::vector<std::thread> threads;
  for (const Grammar*& grammar : grammars) threads.emplace_back([&] { grammar = compiler.compile(spec)->get(); });
  for (std::thread& thread : threads) thread.join();
  for (const Grammar* grammar : grammars) EXPECT_EQ(grammar, grammars[0]);
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
