// Calls of tools in tags, in pieces of every size.
#include "server/openai/markup_calls.h"

#include <gtest/gtest.h>

namespace fovea::server {
namespace {

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
};

Parsed parse(const std::string& text, std::size_t size) {
  MarkupCallParser parser(
      {{"read", R"({"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"},
      "all":{"type":"boolean"},"more":{"type":"object"}}})"},
       {"now", "{}"}});
  Parsed out;
  const auto add = [&](const std::vector<ToolDelta>& pieces) {
    for (const ToolDelta& piece : pieces) {
      if (piece.call < 0) {
        out.content += piece.content;
        continue;
      }
      if (!piece.name.empty()) out.calls.emplace_back(piece.name, "");
      EXPECT_EQ(piece.call + 1, static_cast<int>(out.calls.size()));
      out.calls.back().second += piece.arguments;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += size) add(parser.append(std::string_view(text).substr(at, size)));
  add(parser.finish());
  EXPECT_EQ(parser.num_calls(), static_cast<int>(out.calls.size()));
  return out;
}

void expect(const std::string& text, const std::string& content,
            const std::vector<std::pair<std::string, std::string>>& calls) {
  for (std::size_t size = 1; size <= text.size(); ++size) {
    const Parsed parsed = parse(text, size);
    EXPECT_EQ(parsed.content, content) << text << size;
    EXPECT_EQ(parsed.calls, calls) << text << size;
  }
}

TEST(MarkupCalls, BecomeArgumentsBySchema) {
  expect(
      "I "
      "look.\n\n<tool_call>\n<function=read>\n<parameter=path>\n12\n</parameter>\n<parameter=lines>\n 12 "
      "\n</parameter>\n"
      "<parameter=all>\nTrue\n</parameter>\n<parameter=more>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>\n"
      "<tool_call>\n<function=now>\n</function>\n</tool_call>\n",
      "I look.", {{"read", R"({"path": "12", "lines": 12, "all": true, "more": {"a": [1]}})"}, {"now", "{}"}});
  expect(
      "<tool_call><function=read><parameter=path>a\n\"b\" <c></parameter><parameter=new>x y</parameter></function>"
      "</tool_call>",
      "", {{"read", R"({"path": "a\n\"b\" <c>", "new": "x y"})"}});
}

TEST(MarkupCalls, OthersAreContent) {
  for (const char* text : {"a <b> <tool_call> c", "<tool_call>\n<function=no>\n</function>\n</tool_call>", "<tool_ca",
                           "<tool_call>{\"name\": \"now\"}</tool_call>", "plain"}) {
    expect(text, text, {});
  }
}

TEST(MarkupCalls, KeepWhatWasSentOfACutOne) {
  expect("<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n<parameter=lin", "",
         {{"read", R"({"path": "a")"}});
  expect("<tool_call>\n<function=now>\nwrong\n</tool_call>", "wrong\n</tool_call>", {{"now", "{}"}});
}

}  // namespace
}  // namespace fovea::server
