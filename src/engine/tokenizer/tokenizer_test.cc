// Tests of the Tokenizer on small tokenizers written out here. Exact agreement with the reference library on thousands
// of strings is tested by tests/peers/tokenizer_test.py.
#include "engine/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Byte-level BPE with the 256 byte characters (ids 0-255), a few merges, and two added tokens.
json byte_level_spec() {
  json vocab = json::object();
  const auto& table = unicode::byte_chars();
  for (int byte = 0; byte < 256; ++byte) vocab[std::string(table.utf8[byte].data(), table.length[byte])] = byte;
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  vocab["hello"] = 259;
  vocab["\xC4\xA0hello"] = 260;  // Ġhello
  return {{"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", {"h e", "l l", "he ll", "hell o", json::array({"\xC4\xA0", "hello"})}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens",
           {{{"id", 261}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 262}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}}}};
}

Tokenizer make(const json& spec, const json& config = json::object()) {
  auto made = Tokenizer::from_json(spec.dump(), config.dump());
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

// SentencePiece style: metaspace, byte fallback, a first token.
json fallback_spec() {
  json vocab = {{"<unk>", 0},
                {"<s>", 1},
                {"\xE2\x96\x81", 2},
                {"a", 3},
                {"b", 4},
                {"ab", 5},
                {"\xE2\x96\x81"
                 "ab",
                 6}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 7 + byte;
  return {{"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"a b", "\xE2\x96\x81 ab"}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}}}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"added_tokens", {{{"id", 1}, {"content", "<s>"}, {"special", true}, {"normalized", false}}}}};
}

TEST(Tokenizer, ByteLevelMergesLowestRankFirst) {
  const Tokenizer tokenizer = make(byte_level_spec());
  EXPECT_THAT(*tokenizer.encode("hello hello"), ElementsAre(259, 260));
  EXPECT_THAT(*tokenizer.encode("helo"), ElementsAre(256, 'l', 'o'));
  EXPECT_TRUE(tokenizer.encode("")->empty());
  EXPECT_EQ(tokenizer.vocab_size(), 263);
}

TEST(Tokenizer, PostProcessorMustNameTokensThatExist) {
  nlohmann::json spec = fallback_spec();
  spec["post_processor"]["special_tokens"]["<s>"]["ids"] = {100000};
  const auto tokenizer = Tokenizer::from_json(spec.dump());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.status().message(), testing::HasSubstr("post_processor adds id 100000"));
}

TEST(Tokenizer, AddedTokensAreFoundUnlessTold) {
  const Tokenizer tokenizer = make(byte_level_spec());
  EXPECT_THAT(*tokenizer.encode("<s>hello<tool>"), ElementsAre(261, 259, 262));
  EXPECT_THAT(*tokenizer.encode("<s><tool>", {.parse_special = false}), ElementsAre('<', 's', '>', 262));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{261, 259, 262}), "hello<tool>");
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{261, 259, 262}, false), "<s>hello<tool>");
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  const Tokenizer tokenizer = make(byte_level_spec());
  const auto repaired = [&](std::string_view text) { return tokenizer.decode(*tokenizer.encode(text)); };
  EXPECT_EQ(repaired("a\xFF"
                     "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(repaired("\xE4\xBD"), "\xEF\xBF\xBD");                              // one cut character, one U+FFFD
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate: three bad bytes
  EXPECT_EQ(repaired("\xF4\x90\x80\x80").size(), 12u);                          // above U+10FFFF
  EXPECT_EQ(repaired("\xC0\xAF").size(), 6u);                                   // overlong
}

TEST(Tokenizer, ByteFallbackAndPostProcessor) {
  const Tokenizer tokenizer = make(fallback_spec());
  EXPECT_THAT(*tokenizer.encode("ab ab"), ElementsAre(1, 6, 6));
  EXPECT_THAT(*tokenizer.encode("\xC3\xA9", {.add_special_tokens = false}), ElementsAre(2, 7 + 0xC3, 7 + 0xA9));
  EXPECT_EQ(tokenizer.decode(*tokenizer.encode("ab \xC3\xA9 ab")), "ab \xC3\xA9 ab");
  EXPECT_EQ(tokenizer.token_bytes(6), " ab");
  EXPECT_EQ(tokenizer.token_bytes(7 + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer.token_bytes(100000), "");
}

TEST(Tokenizer, ConfigDecidesAboutFirstToken) {
  const Tokenizer without = make(fallback_spec(), {{"bos_token", "<s>"}, {"add_bos_token", false}});
  EXPECT_THAT(*without.encode("ab"), ElementsAre(6));
  EXPECT_EQ(without.bos_id(), 1);
  EXPECT_EQ(without.eos_id(), -1);
  json spec = fallback_spec();
  spec.erase("post_processor");
  const Tokenizer with = make(spec, {{"bos_token", {{"content", "<s>"}}}, {"add_bos_token", true}});
  EXPECT_THAT(*with.encode("ab"), ElementsAre(1, 6));
}

TEST(StreamDecoder, NeverSplitsACharacter) {
  const Tokenizer tokenizer = make(byte_level_spec());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.append(0xF0), "");
  EXPECT_EQ(stream.append(0x9F), "");
  EXPECT_EQ(stream.append(0x98), "");
  EXPECT_EQ(stream.append(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.append(0xE4), "");
  EXPECT_EQ(stream.append('x'), "\xEF\xBF\xBDx");  // the character can no longer become whole
  EXPECT_EQ(stream.append(0xE4), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.append('y'), "y");  // as new
}

TEST(StreamDecoder, HoldsARunOfByteTokensUntilItIsDecided) {
  const Tokenizer tokenizer = make(fallback_spec());
  const auto byte = [](int value) { return 7 + value; };
  StreamDecoder good(tokenizer);
  EXPECT_EQ(good.append(6), "ab");  // the first space is stripped
  EXPECT_EQ(good.append(byte(0xC3)), "");
  EXPECT_EQ(good.append(byte(0xA9)), "");
  EXPECT_EQ(good.append(6), "\xC3\xA9 ab");
  StreamDecoder bad(tokenizer);
  EXPECT_EQ(bad.append(byte(0xC3)), "");
  EXPECT_EQ(bad.append(byte(0x41)), "");
  EXPECT_EQ(bad.finish(), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(StreamDecoder, ALongRunOfByteTokensIsNotHeldForever) {
  const Tokenizer tokenizer = make(fallback_spec());
  StreamDecoder stream(tokenizer);
  std::string text;
  std::size_t longest_wait = 0, wait = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece = stream.append(7 + (i % 2 == 0 ? 0xC3 : 0xA9));
    wait = piece.empty() ? wait + 1 : 0;
    longest_wait = std::max(longest_wait, wait);
    EXPECT_TRUE(unicode::is_valid(piece));
    text += piece;
  }
  text += stream.finish();
  EXPECT_EQ(text.size(), 1000u);
  EXPECT_LE(longest_wait, Decoder::kMaxHeldBytes);
}

TEST(Tokenizer, ErrorsSayWhatIsWrong) {
  const auto error = [](const json& spec) {
    auto made = Tokenizer::from_json(spec.dump());
    EXPECT_FALSE(made.ok());
    return made.status().message();
  };
  json spec = byte_level_spec();
  spec["model"]["type"] = "Unigram";
  EXPECT_THAT(error(spec), HasSubstr("Unigram"));
  spec = byte_level_spec();
  spec["model"]["merges"].push_back("q zz");
  EXPECT_THAT(error(spec), HasSubstr("merge 5 makes 'qzz'"));
  spec = byte_level_spec();
  spec["model"]["vocab"]["x y"] = -4;
  EXPECT_THAT(error(spec), HasSubstr("-4"));
  spec = byte_level_spec();
  spec["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(error(spec), HasSubstr("(a"));
  spec["pre_tokenizer"]["pattern"]["Regex"] = "[a&&[ab]]";
  EXPECT_THAT(error(spec), HasSubstr("not supported"));
  EXPECT_THAT(Tokenizer::from_json("{\"model\": ").status().message(), HasSubstr("not valid JSON"));
  EXPECT_THAT(Tokenizer::from_json(std::string(100, '[')).status().message(), HasSubstr("nests 100"));
  EXPECT_THAT(Tokenizer::load("/nowhere").status().message(), HasSubstr("/nowhere/tokenizer.json"));
}

TEST(Tokenizer, ErrorsCutWhatIsLong) {
  const std::string text(100000, 'x');
  const auto expect_short = [](const json& spec) {
    const auto made = Tokenizer::from_json(spec.dump());
    ASSERT_FALSE(made.ok());
    EXPECT_LT(made.status().message().size(), 1000u);
  };
  for (const char* part : {"model", "pre_tokenizer", "normalizer", "decoder", "post_processor"}) {
    json spec = byte_level_spec();
    spec[part]["type"] = text;
    expect_short(spec);
  }
  json spec = byte_level_spec();
  spec["model"]["merges"].push_back(text);
  expect_short(spec);
  spec["model"]["merges"].back() = text + " " + text;
  expect_short(spec);
  spec = byte_level_spec();
  spec["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(" + text}}}, {"behavior", "Isolated"}};
  expect_short(spec);
  spec["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", text}};
  expect_short(spec);
}

TEST(Tokenizer, RunawayPatternsEndWithAStatus) {
  json spec = byte_level_spec();
  spec["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a+)+$"}}}, {"behavior", "Isolated"}};
  const Tokenizer tokenizer = make(spec);
  const auto ids = tokenizer.encode(std::string(5000, 'a') + "!");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
}

TEST(Tokenizer, ARunOfSpacesIsWalkedBackWhole) {
  json spec = byte_level_spec();
  spec["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|\\S+"}}}, {"behavior", "Removed"}};
  const auto ids = make(spec).encode(std::string(2'000'000, ' ') + "x");
  EXPECT_TRUE(ids.ok()) << ids.status().message();
}

TEST(Tokenizer, ThreadsAndModelsShareNoState) {
  const Tokenizer bytes = make(byte_level_spec());
  const Tokenizer pieces = make(fallback_spec());
  const std::vector<std::int32_t> from_bytes = *bytes.encode("ab hello"), from_pieces = *pieces.encode("ab hello");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {  // the same text with both: a thread's cache keeps them apart
        wrong += *bytes.encode("ab hello") != from_bytes;
        wrong += *pieces.encode("ab hello") != from_pieces;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_NE(from_bytes, from_pieces);
}

TEST(Tokenizer, ALongWordIsEncodedLikeItsParts) {
  const Tokenizer tokenizer = make(byte_level_spec());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "hello";
  const auto ids = *tokenizer.encode(text);
  EXPECT_EQ(ids, std::vector<std::int32_t>(20000, 259));
}

}  // namespace
}  // namespace fovea
