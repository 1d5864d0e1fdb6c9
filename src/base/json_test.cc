// Limits of the parser and the messages of typed reads.
#include "base/json.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

JsonReader reader(const Json& value) { return *JsonReader::create(value, "c.json"); }

TEST(Json, ParsesAndNamesTheSourceInErrors) {
  EXPECT_EQ((*parse_json("[1, 2.5, \"x\"]", "doc"))[1], 2.5);
  for (const char* bad : {"", "{", "[1,]", "{\"a\":}", "nul", "1e999", "\"\x80\"", "[1] 2"}) {
    const auto result = parse_json(bad, "doc");
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(result.status().message().starts_with("doc is not valid JSON: ")) << result.status().message();
    EXPECT_EQ(result.status().message().find("json.exception"), std::string::npos);
  }
}

TEST(Json, DepthAndSizeAreLimited) {
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  EXPECT_EQ(parse_json(deep, "doc").status().code(), StatusCode::kOutOfRange);
  EXPECT_TRUE(parse_json(std::string_view(deep).substr(1, 128), "doc").ok());
  EXPECT_EQ(parse_json(std::string(5'000'000, '['), "doc").status().code(), StatusCode::kOutOfRange);
  EXPECT_TRUE(parse_json("\"" + std::string(100, '[') + "\\\"" + std::string(100, '{') + "\"", "doc").ok());
  EXPECT_EQ(parse_json("[1,2]", "doc", {.max_bytes = 4}).status().code(), StatusCode::kOutOfRange);
}

TEST(Json, TypedReads) {
  const Json value = *parse_json(
      R"({"i": 7, "f": 3.0, "x": 2.5, "b": true, "s": "t", "n": null, "v": [1, 2], "w": ["a"], "o": {"deep": 1}})",
      "c");
  const JsonReader r = reader(value);
  EXPECT_EQ(*r.integer("i"), 7);
  EXPECT_EQ(*r.integer("f"), 3);
  EXPECT_EQ(*r.number("x"), 2.5);
  EXPECT_TRUE(*r.boolean("b"));
  EXPECT_EQ(*r.string("s"), "t");
  EXPECT_EQ(*r.integers("v"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(*r.strings("w"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(*r.child("o")->integer("deep"), 1);
  EXPECT_FALSE(r.has("n"));
  EXPECT_EQ(*r.integer_or("n", 5), 5);
  EXPECT_EQ(*r.integer_or("i", 5), 7);
  EXPECT_EQ(*r.string_or("none", "d"), "d");
  EXPECT_EQ(*r.number_or("none", 0.5), 0.5);
  EXPECT_TRUE(*r.boolean_or("none", true));
}

TEST(Json, ErrorsSayWhatAndWhere) {
  const Json value =
      *parse_json(R"({"i": "7", "x": 2.5, "u": 18446744073709551615, "v": [1, "a"], "o": {"k": 9}})", "c");
  const JsonReader r = reader(value);
  EXPECT_EQ(r.integer("i").status().message(), "c.json: i is string, expected an integer");
  EXPECT_EQ(r.integer("x").status().message(), "c.json: x is 2.5, expected an integer");
  EXPECT_EQ(r.integer("none").status().message(), "c.json: none is missing, expected an integer");
  EXPECT_FALSE(r.integer("u").ok());
  EXPECT_EQ(r.integers("v").status().message(), "c.json: v[1] is string, expected an integer");
  EXPECT_EQ(r.child("o")->integer("k", 0, 8).status().message(), "c.json: o.k is 9, expected 0 to 8");
  EXPECT_EQ(r.integer_or("i", 1).status().message(), "c.json: i is string, expected an integer");
  EXPECT_EQ(r.child("i").status().message(), "c.json: i is string, expected an object");
  EXPECT_EQ(JsonReader::create(value["v"], "c.json").status().message(), "c.json is array, expected an object");
}

TEST(Json, UnknownKeysAreNamedBesideTheKnown) {
  const Json value = *parse_json(R"({"i": 7, "window": null})", "c");
  EXPECT_TRUE(reader(value).only({"i", "window", "x"}).ok());
  EXPECT_EQ(reader(value).only({"i", "x"}).message(), "c.json: window is unknown; known here are i, x");
}

TEST(Json, MessagesCutWhatIsLong) {
  const std::string text(100000, 'x');
  EXPECT_LT(parse_json("{\"" + text, text).status().message().size(), 700u);
  EXPECT_LT(parse_json(std::string(100, '['), text).status().message().size(), 700u);
  const Json value = *parse_json("{\"" + text + "\": 1}", "c");
  const JsonReader r = reader(value);
  EXPECT_LT(r.string(text).status().message().size(), 700u);
  EXPECT_LT(read_json_file("/" + text).status().message().size(), 700u);
}

TEST(Json, MissingFile) { EXPECT_EQ(read_json_file("/no/such/file").status().code(), StatusCode::kNotFound); }

}  // namespace
}  // namespace fovea
