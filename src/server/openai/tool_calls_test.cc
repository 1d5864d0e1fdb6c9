// Calls in the text of answers: every family, every way that a stream may be cut, and what only looks like a call.
#include "server/openai/tool_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/json.h"

namespace fovea::server {
namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "content: " << Json(answer.content);
  for (const Call& call : answer.calls) *out << ", " << call.name << " " << call.arguments;
}

Answer read(std::string_view format, const std::vector<std::string_view>& pieces) {
  ToolCallParser parser(*tool_format_named(format), {"add", "get_weather"});
  Answer answer;
  const auto take = [&](const std::vector<ToolDelta>& deltas) {
    for (const ToolDelta& delta : deltas) {
      answer.content += delta.content;
      if (delta.call < 0) continue;
      EXPECT_TRUE(delta.content.empty());
      // A call begins with its name alone, and goes on without.
      EXPECT_NE(delta.name.empty(), delta.arguments.empty());
      if (!delta.name.empty()) answer.calls.push_back({delta.name, ""});
      EXPECT_EQ(delta.call + 1, static_cast<int>(answer.calls.size()));
      if (!answer.calls.empty()) answer.calls.back().arguments += delta.arguments;
    }
  };
  for (const std::string_view piece : pieces) take(parser.append(piece));
  take(parser.finish());
  EXPECT_EQ(parser.num_calls(), static_cast<int>(answer.calls.size()));
  return answer;
}

struct Case {
  std::string format, text;
  Answer answer;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Hermes and Qwen.
      {"hermes",
       "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2, {}]}}\n</tool_call>",
       {"", {{"add", R"({"a": 1, "b": [2, {}]})"}}}},
      {"hermes",
       "Let me see.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"arguments\": "
       "{\"city\": \"K\\\"}\\\\öln\"} , \"id\": [\"}\"], \"name\": \"get_weather\"}\n</tool_call>\n",
       {"Let me see.", {{"add", "{}"}, {"get_weather", R"({"city": "K\"}\\öln"})"}}}},
      {"hermes", R"(<tool_call>{"name":"add"}</tool_call>)", {"", {{"add", "{}"}}}},
      {"hermes", R"(<tool_call>{"name":"add","arguments":"{\"a\":1}"}</tool_call>)", {"", {{"add", R"({"a":1})"}}}},
      {"hermes",
       R"(<tool_call>{"name":"add","arguments":{}}<tool_call>{"name":"add","arguments":[1]})",
       {"", {{"add", "{}"}, {"add", "[1]"}}}},
      {"hermes", R"(<tool_call>{"name":"add","arguments":{}}</tool_call> Done it.)", {" Done it.", {{"add", "{}"}}}},
      {"hermes", R"(<tool_call>{"name":"add","arguments":{"a": "cut h)", {"", {{"add", R"({"a": "cut h)"}}}},
      {"hermes", "<tool_call>{\"name\":\"add\"}</tool_call>\n<tool_ca", {"", {{"add", "{}"}}}},
      {"hermes", "<tool_call>{\"name\":\"add\"}</tool_call>\n<tool_call>\n{\"nam", {"", {{"add", "{}"}}}},
      {"hermes", "a < b, <tool_ and <tool_cal", {"a < b, <tool_ and <tool_cal", {}}},
      {"hermes", "a <tool_call> is a tag", {"a <tool_call> is a tag", {}}},
      {"hermes", " \n<tool_call>\n</tool_call> ", {" \n<tool_call>\n</tool_call> ", {}}},
      {"hermes",
       R"(See <tool_call>{"name":"remove","arguments":{}}</tool_call>)",
       {R"(See <tool_call>{"name":"remove","arguments":{}}</tool_call>)", {}}},
      {"hermes", R"(<tool_call>{name: "add"}</tool_call>)", {R"(<tool_call>{name: "add"}</tool_call>)", {}}},
      {"hermes", R"(<tool_call>{"name":"ad)", {R"(<tool_call>{"name":"ad)", {}}},
      {"hermes", R"({"name":"add","arguments":{}})", {R"({"name":"add","arguments":{}})", {}}},
      {"hermes", "", {"", {}}},
      // Llama 3.
      {"llama3_json", R"({"name": "add", "parameters": {"a": 1}})", {"", {{"add", R"({"a": 1})"}}}},
      {"llama3_json",
       R"(  {"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}} )",
       {"", {{"add", R"({"a": 1})"}, {"get_weather", "{}"}}}},
      {"llama3_json", R"({"name": "add", "parameters": {}} and more text)", {" and more text", {{"add", "{}"}}}},
      {"llama3_json", R"({"answer": {"name": "add"}})", {R"({"answer": {"name": "add"}})", {}}},
      {"llama3_json", R"(Say {"name": "add"} )", {R"(Say {"name": "add"} )", {}}},
      // Mistral.
      {"mistral",
       R"([TOOL_CALLS] [{"name": "add", "arguments": {"a": "]"}}, {"name": "add", "arguments": {}, "id": "abcdefghi"}])",
       {"", {{"add", R"({"a": "]"})"}, {"add", "{}"}}}},
      {"mistral", R"([TOOL_CALLS][{"name":"add","arguments":{}}] So.)", {" So.", {{"add", "{}"}}}},
      {"mistral", "[TOOL_CALLS] []", {"[TOOL_CALLS] []", {}}},
      {"mistral", "[1, 2] [TOOL", {"[1, 2] [TOOL", {}}},
  };
  return all;
}

TEST(ToolCalls, AreTheSameWhereverTheStreamIsCut) {
  for (const Case& one : cases()) {
    const std::string_view text = one.text;
    EXPECT_EQ(read(one.format, {text}), one.answer) << one.format << " " << text;
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
    EXPECT_EQ(read(one.format, bytes), one.answer) << one.format << " " << text;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      for (std::size_t j = i; j <= std::min(i + 12, text.size()); ++j) {
        const Answer answer = read(one.format, {text.substr(0, i), text.substr(i, j - i), text.substr(j)});
        ASSERT_EQ(answer, one.answer) << one.format << " cut at " << i << " and " << j << ": " << text;
      }
    }
  }
}

// Arguments go on before the call is whole, and content before the answer is.
TEST(ToolCalls, GoOnAsSoonAsTheyAreCertain) {
  ToolCallParser parser(*tool_format_named("hermes"), {"add"});
  const auto text = [&](std::string_view piece) {
    std::string out;
    for (const ToolDelta& delta : parser.append(piece)) out += delta.content + delta.name + delta.arguments;
    return out;
  };
  EXPECT_EQ(text("Well, <"), "Well,");
  EXPECT_EQ(text("3 <tool"), " <3");
  EXPECT_EQ(text("_call>{\"name\": \"add"), "");
  EXPECT_EQ(text("\", \"arguments\": {\"a\": \"x"), "add{\"a\": \"x");
  EXPECT_EQ(text(" "), "");
  EXPECT_EQ(text("y\""), " y\"");
}

// Pieces of calls in random order, cut at random places: nothing of the text is lost where no call came of it.
TEST(ToolCalls, SurviveWhateverAModelWrites) {
  const std::vector<std::string_view> words = {"<tool_call>",
                                               "</tool_call>",
                                               "[TOOL_CALLS]",
                                               "<tool",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               "\"",
                                               "\"name\": ",
                                               "\"add\"",
                                               "\"x\"",
                                               "\"arguments\": ",
                                               ",",
                                               ";",
                                               "\\",
                                               "\n",
                                               " ",
                                               "ü",
                                               "{\"name\": \"add\"",
                                               "1",
                                               ":",
                                               "true",
                                               "\"parameters\":{"};
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint32_t i = random() % 24; i > 0; --i) text += words[random() % words.size()];
    for (const char* format : {"hermes", "llama3_json", "mistral"}) {
      const Answer whole = read(format, {text});
      std::vector<std::string_view> pieces;
      for (std::string_view rest = text; !rest.empty();) {
        const std::size_t size = 1 + random() % 6;
        pieces.push_back(rest.substr(0, size));
        rest.remove_prefix(std::min(size, rest.size()));
      }
      ASSERT_EQ(read(format, pieces), whole) << format << " " << text;
      if (whole.calls.empty()) {
        ASSERT_EQ(whole.content, text) << format;
      }
    }
  }
}

TEST(ToolCalls, HoldNoMoreThanACallMayHave) {
  const std::string text = "<tool_call>{\"id\": \"" + std::string(100'000, 'x');
  ToolCallParser parser(*tool_format_named("hermes"), {"add"});
  std::string content;
  for (const ToolDelta& delta : parser.append(text)) content += delta.content;
  EXPECT_EQ(content, text);
}

TEST(ToolFormat, IsToldFromTheTemplate) {
  const auto name = [](std::string_view source) {
    const ToolFormat* format = tool_format_of(source);
    return format == nullptr ? std::string_view("none") : format->name;
  };
  EXPECT_EQ(name("{% if tools %}<tool_call>{% endif %}"), "hermes");
  EXPECT_EQ(name("{% if tools %}<|python_tag|>{% endif %}"), "llama3_json");
  EXPECT_EQ(name("{% if tools %}[TOOL_CALLS]{% endif %}"), "mistral");
  EXPECT_EQ(name("{% if tools %}<tool_call><function={% endif %}"), "qwen3_coder");
  EXPECT_EQ(name("{% if tools %}<function={% endif %}"), "none");
  EXPECT_EQ(name("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}"), "mistral_v11");
  EXPECT_EQ(name("{% if tools %}<|python_start|>{% endif %}"), "pythonic");
  EXPECT_EQ(name("{% if tools %}<|python_tag|>[func_name1(params_name1=params_value1...)]{% endif %}"), "pythonic");
  EXPECT_EQ(name("{% for m in messages %}{{ m.content }}{% endfor %}"), "none");
  EXPECT_EQ(tool_format_named("nothing"), nullptr);
}

}  // namespace
}  // namespace fovea::server
