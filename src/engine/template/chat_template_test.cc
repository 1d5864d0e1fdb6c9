// Tests of ChatTemplate: messages of errors, limits, and what the peer test cannot compare. Agreement with Jinja2 on
// whole templates and on thousands of generated ones is tested by tests/peers/template_test.py.
#include "engine/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

namespace fovea {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string render(const std::string& source, const ordered_json& context = ordered_json::object()) {
  const auto made = ChatTemplate::parse(source);
  if (!made.ok()) return made.status().to_string();
  auto text = made->render(context);
  return text.ok() ? *text : text.status().to_string();
}

TEST(ChatTemplate, RendersAConversation) {
  const ordered_json context = {{"messages", {{{"role", "user"}, {"content", " hi "}}}},
                                {"add_generation_prompt", true}};
  EXPECT_EQ(render("{% for m in messages %}\n<{{ m.role }}>{{ m['content'] | trim }}\n{% endfor %}\n"
                   "{% if add_generation_prompt %}<assistant>{% endif %}\n",
                   context),
            "<user>hi\n<assistant>");
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  ordered_json context;
  context["tool"] = ordered_json::parse(R"({"zeta": 1, "alpha": {"b": [], "a": null}})");
  EXPECT_EQ(render("{{ tool | tojson }}", context), R"({"zeta": 1, "alpha": {"b": [], "a": null}})");
}

TEST(ChatTemplate, ErrorsNameTheLineAndWhatWasExpected) {
  EXPECT_EQ(render("one\n{% if x %}\nthree"),
            "invalid argument: chat template, line 3: the template ends inside a block that begins on line 2, expected "
            "'endif'");
  EXPECT_THAT(render("\n\n{{ a b }}"), HasSubstr("line 3: expected '}}', got 'b'"));
  EXPECT_THAT(render("{{ (1 }}"), HasSubstr("expected ')'"));
  EXPECT_THAT(render("{% for x %}"), HasSubstr("expected 'in', got '%}'"));
  EXPECT_THAT(render("{% include 'x' %}"), HasSubstr("unknown statement 'include'"));
  EXPECT_THAT(render("{{ 1 | nofilter }}"), HasSubstr("there is no filter 'nofilter'"));
  EXPECT_THAT(render("\n{{ missing.name }}"), HasSubstr("line 2: 'missing' is undefined"));
  EXPECT_THAT(render("{{ 'a' + 1 }}"), HasSubstr("operator '+' does not work on str and int"));
  EXPECT_THAT(render("\n\n{{ raise_exception('roles must alternate') }}"), HasSubstr("line 3: roles must alternate"));
  EXPECT_THAT(render("{{ 9223372036854775807 + 1 }}"), HasSubstr("64 bits"));
  EXPECT_FALSE(ChatTemplate::parse("\xFF").ok());
  EXPECT_FALSE(ChatTemplate::parse(std::string(ChatTemplate::kMaxSourceBytes + 1, 'x')).ok());
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  EXPECT_THAT(render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("recurses deeper"));
  EXPECT_THAT(
      render("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
      HasSubstr("memory"));
  EXPECT_THAT(render("{{ 'x' * 99999999999 }}"), HasSubstr("too large"));
  EXPECT_THAT(render("{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"), HasSubstr("prints more"));
  EXPECT_THAT(render("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(render("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("nests deeper"));
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  EXPECT_THAT(render(chain + " }}"), HasSubstr("nests deeper"));
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  EXPECT_THAT(render(blocks), HasSubstr("nests deeper"));
  EXPECT_THAT(render("{{ range(100001) }}"), HasSubstr("longer than"));
  EXPECT_THAT(
      render("{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [ns.l] %}{% endfor %}"),
      HasSubstr("memory"));
}

TEST(ChatTemplate, AListMayHoldItself) {
  EXPECT_THAT(render("{% set l = [1] %}{% set x = l.append(l) %}{{ l }}"), HasSubstr("nests too deep"));
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me is defined }}"), "True");
}

TEST(ChatTemplate, AppendsToLists) {
  EXPECT_EQ(render("{% set l = [] %}{% for i in range(3) %}{% set x = l.append(i) %}{% endfor %}{{ l }}"), "[0, 1, 2]");
}

TEST(ChatTemplate, NothingOutsideTheContextIsReached) {
  EXPECT_THAT(render("{{ ''.__class__.__mro__ }}"), HasSubstr("undefined"));
  EXPECT_THAT(render("{% set d = {'a': 1} %}{{ d.update({'b': 2}) }}"), HasSubstr("undefined"));
}

TEST(ChatTemplate, TellsTheTime) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char year[8];
  std::strftime(year, sizeof year, "%Y", &local);
  EXPECT_EQ(render("{{ strftime_now('%Y') }}"), year);
  EXPECT_EQ(render("{{ strftime_now is defined }}"), "True");
}

TEST(ChatTemplate, LimitsCanBeSet) {
  const auto made = ChatTemplate::parse("{% for i in range(1000) %}{{ i }}{% endfor %}");
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->render({}).ok());
  ChatTemplate::RenderLimits few;
  few.steps = 500;
  EXPECT_FALSE(made->render({}, few).ok());
  ChatTemplate::RenderLimits small;
  small.output_bytes = 100;
  EXPECT_FALSE(made->render({}, small).ok());
}

}  // namespace
}  // namespace fovea
