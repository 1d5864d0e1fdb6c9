// Calls of tools in Python's words and behind names: every way that a stream may be cut, and what only looks like a
// call.
#include "server/openai/pythonic_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "server/openai/named_calls.h"

namespace fovea::server {
namespace {

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

template <class Parser>
Parsed parse(const std::string& text, const std::vector<std::size_t>& sizes) {
  Parser parser({"add", "now", "get_weather"});
  Parsed out;
  const auto add = [&](const std::vector<ToolDelta>& pieces) {
    for (const ToolDelta& piece : pieces) {
      if (piece.call < 0) {
        out.content += piece.content;
        continue;
      }
      EXPECT_NE(piece.name.empty(), piece.arguments.empty());  // a call begins with its name alone
      if (!piece.name.empty()) out.calls.emplace_back(piece.name, "");
      EXPECT_EQ(piece.call + 1, static_cast<int>(out.calls.size()));
      out.calls.back().second += piece.arguments;
    }
  };
  std::size_t at = 0;
  for (std::size_t i = 0; at < text.size(); at += sizes[i++ % sizes.size()]) {
    add(parser.append(std::string_view(text).substr(at, sizes[i % sizes.size()])));
  }
  add(parser.finish());
  EXPECT_EQ(parser.num_calls(), static_cast<int>(out.calls.size()));
  return out;
}

template <class Parser>
void expect(const std::string& text, const Parsed& parsed) {
  for (std::size_t size = 1; size <= text.size(); ++size) {
    const Parsed got = parse<Parser>(text, {size});
    EXPECT_EQ(got.content, parsed.content) << text << " " << size;
    EXPECT_EQ(got.calls, parsed.calls) << text << " " << size;
  }
}

template <class Parser>
void expect_same_however_cut(const std::vector<std::string>& words) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::uint32_t i = random() % 20; i > 0; --i) text += words[random() % words.size()];
    if (text.empty()) continue;
    const Parsed whole = parse<Parser>(text, {text.size()});
    ASSERT_EQ(parse<Parser>(text, {1 + random() % 5, 1 + random() % 7, 1}), whole) << text;
    if (whole.calls.empty()) {
      ASSERT_EQ(whole.content, text);
    }
  }
}

TEST(PythonicCalls, BecomeJson) {
  expect<PythonicCallParser>(
      R"([get_weather(city="Aix", days=3, units=['C', "F"], at={'lat': 43.5, "on": True, 2: (None,)}), now()])",
      {"",
       {{"get_weather",
         R"({"city": "Aix", "days": 3, "units": ["C", "F"], "at": {"lat": 43.5, "on": true, "2": [null]}})"},
        {"now", "{}"}}});
  expect<PythonicCallParser>("\n<|python_start|>[ add( a = -1.5e3 , b = false, ) ]<|python_end|>\n",
                             {"", {{"add", R"({"a": -1.5e3, "b": false})"}}});
  expect<PythonicCallParser>(R"([add(a="x, (y)] 'z'", b='it\'s "q"\n\u00e9\x41', c="""a "b" c""", d='')])",
                             {"",
                              {{"add", R"({"a": "x, (y)] 'z'", "b": "it's \"q\"\né)"
                                       R"(A", "c": "a \"b\" c", "d": ""})"}}});
  expect<PythonicCallParser>(R"([add(a="\ud83d\ude00", b="\ud83d")])",
                             {"", {{"add", "{\"a\": \"😀\", \"b\": \"\xef\xbf\xbd\"}"}}});
}

TEST(PythonicCalls, WhatIsNoLiteralIsText) {
  expect<PythonicCallParser>("[add(a=today + 1, b=0x10)]", {"", {{"add", R"({"a": "today + 1", "b": "0x10"})"}}});
  expect<PythonicCallParser>(std::string("[add(a=1\0)]", 11), {"", {{"add", R"({"a": "1\u0000"})"}}});
  expect<PythonicCallParser>("[now()] and so on", {"and so on", {{"now", "{}"}}});
}

TEST(PythonicCalls, OthersAreContent) {
  for (const char* text :
       {"[1, 2]", "[no(a=1)]", "[]", "Look: [now()]", "[now", "now()", " [ see", "<|python_", "[add = 1]"}) {
    expect<PythonicCallParser>(text, {text, {}});
  }
}

TEST(PythonicCalls, KeepWhatWasSentOfACutOne) {
  expect<PythonicCallParser>("[add(a=1, b='long te", {"", {{"add", R"({"a": 1)"}}});
  expect<PythonicCallParser>("[add(1, 2)]", {"1, 2)]", {{"add", "{}"}}});
  expect<PythonicCallParser>("[now(), no(a=1)]", {", no(a=1)]", {{"now", "{}"}}});
}

TEST(PythonicCalls, AreTheSameHoweverTheyAreCut) {
  expect_same_however_cut<PythonicCallParser>({"[",
                                               "]",
                                               "add(",
                                               "now(",
                                               ")",
                                               "a=",
                                               "b=",
                                               "1",
                                               "'",
                                               "\"",
                                               "\"\"\"",
                                               "\\",
                                               ",",
                                               " ",
                                               "\n",
                                               "{",
                                               "}",
                                               ":",
                                               "None",
                                               "x",
                                               "<|python_start|>",
                                               "<|python_end|>",
                                               "é",
                                               "no("});
}

TEST(PythonicCalls, ArgumentsOfDeepOrLongValuesAreJson) {
  for (const std::string& value :
       {std::string(200, '[') + std::string(200, ']'), "'" + std::string(100'000, 'x') + "'"}) {
    const Parsed parsed = parse<PythonicCallParser>("[add(a=" + value + ")]", {3});
    ASSERT_EQ(parsed.calls.size(), 1u);
    EXPECT_TRUE(nlohmann::json::accept(parsed.calls[0].second));
  }
}

TEST(NamedCalls, GoOnAsTheyWereWritten) {
  expect<NamedCallParser>("[TOOL_CALLS]add[ARGS]{\"a\": 1,  \"b\": \"}[ARGS]\\\"\"}[TOOL_CALLS]now[ARGS]{}",
                          {"", {{"add", "{\"a\": 1,  \"b\": \"}[ARGS]\\\"\"}"}, {"now", "{}"}}});
  expect<NamedCallParser>("Sure.\n[TOOL_CALLS] get_weather[CALL_ID]a1B2c3D4e[ARGS] {\"city\": [{}]}\n",
                          {"Sure.", {{"get_weather", "{\"city\": [{}]}"}}});
  expect<NamedCallParser>("[TOOL_CALLS]now[ARGS][TOOL_CALLS]now[ARGS] x", {"x", {{"now", "{}"}, {"now", "{}"}}});
}

TEST(NamedCalls, OthersAreContent) {
  for (const char* text : {"[TOOL_CALLS]no[ARGS]{}", "[TOOL_CALLS] [{\"name\": \"add\"}]", "[TOOL_CA", "a [TOOL] b",
                           "[TOOL_CALLS]add", "plain"}) {
    expect<NamedCallParser>(text, {text, {}});
  }
  expect<NamedCallParser>("[TOOL_CALLS]add[ARGS]{\"a\": [1", {"", {{"add", "{\"a\": [1"}}});
}

TEST(NamedCalls, AreTheSameHoweverTheyAreCut) {
  expect_same_however_cut<NamedCallParser>({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "add", "now", "{", "}", "\"", "\\",
                                            "a", " ", "\n", "[", "]", "1", "x[", "é"});
}

}  // namespace
}  // namespace fovea::server
