// Head profiles: their file, DuoAttention's folders, and the groups of heads that a model has with one.
#include "engine/model/head_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "engine/model/kv_grouping.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Heads = std::vector<ModelHead>;

TEST(HeadProfile, ReadsWhatItWrites) {
  const auto profile = parse_head_profile(
      R"({"model": "m", "sink_tokens": 4, "local_tokens": 200, "prefill_local_tokens": 1000, "streaming": [[1, 0], [0, 2]]})",
      "p.json");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->sink_tokens, 64) << "sinks are whole blocks";
  EXPECT_EQ(profile->streaming, (Heads{{0, 2}, {1, 0}}));
  EXPECT_TRUE(profile->streams(1, 0));
  EXPECT_FALSE(profile->streams(1, 2));
  const auto again = parse_head_profile(to_json(*profile), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->streaming, profile->streaming);
  EXPECT_EQ(again->prefill_local_tokens, 1000);
  EXPECT_EQ(again->local_tokens, 200);
}

TEST(HeadProfile, ErrorsSayWhatAndWhere) {
  const auto message = [](const char* json) { return parse_head_profile(json, "p.json").status().message(); };
  EXPECT_THAT(message("[]"), HasSubstr("p.json"));
  EXPECT_THAT(message(R"({"local_tokens": 1, "streaming": []})"), HasSubstr("sink_tokens"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 0, "streaming": []})"), HasSubstr("local_tokens"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 9, "prefill_local_tokens": 8, "streaming": []})"),
              HasSubstr("prefill_local_tokens"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 9})"), HasSubstr("streaming"));
  EXPECT_THAT(message(R"({"sinks": 0, "local_tokens": 9, "streaming": []})"), HasSubstr("p.json: sinks is unknown"));
  EXPECT_THAT(message(R"({"sinks": 0, "local_tokens": 9, "streaming": []})"), HasSubstr("sink_tokens, local_tokens"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 9, "streaming": [[0, 0], [1]]})"),
              HasSubstr("streaming[1] is [1]"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 9, "streaming": [[0, -1]]})"), HasSubstr("streaming[0]"));
  EXPECT_THAT(message(R"({"sink_tokens": 0, "local_tokens": 9, "streaming": [[0, 1], [0, 1]]})"), HasSubstr("twice"));
}

TEST(HeadProfile, OfAnotherModelIsRefused) {
  ModelConfig config;
  config.num_layers = 4;
  config.num_kv_heads = 2;
  config.layer_window = {0, 0, 0, 0};
  const auto refused = [&](const std::string& rest) {
    const auto profile =
        parse_head_profile("{\"sink_tokens\": 64, \"local_tokens\": 9, \"streaming\": [[0, 0]]" + rest + "}", "p.json");
    EXPECT_TRUE(profile.ok()) << profile.status().message();
    return check_head_profile(*profile, config).message();
  };
  EXPECT_EQ(refused(""), "");
  EXPECT_EQ(refused(R"(, "layers": 4, "kv_heads": 2)"), "");
  EXPECT_THAT(refused(R"(, "layers": 32, "kv_heads": 8)"), HasSubstr("32 layers of 8 KV heads; this one has 4"));
  EXPECT_THAT(refused(R"(, "layers": 4, "kv_heads": 1)"), HasSubstr("of 1 KV heads"));
  const HeadProfile written{"m", 64, 9, 0, {}, 4, 2};
  const auto again = parse_head_profile(to_json(written), "again");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->num_layers, 4);
  EXPECT_EQ(again->num_kv_heads, 2);
}

class DuoFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    write("config.json", R"({"sink_size": 128, "recent_size": 256, "lr": 0.02})");
    write("full_attention_heads.tsv", "0.9\t0.1\n1.7e0 -0.3\n0.4\t0.5\n");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(write_file_atomic(folder_ / name, text).ok());
  }
  const fs::path folder_ = fs::temp_directory_path() / ("fovea_duo_attention_" + std::to_string(getpid()));
};

TEST_F(DuoFolder, HeadsBelowTheQuantileStream) {
  const auto half = load_head_profile(folder_);
  ASSERT_TRUE(half.ok()) << half.status().message();
  EXPECT_EQ(half->sink_tokens, 128);
  EXPECT_EQ(half->local_tokens, 256);
  EXPECT_EQ(half->streaming, (Heads{{0, 1}, {1, 1}, {2, 0}}));
  EXPECT_EQ(load_head_profile(folder_.string() + "@0.2")->streaming, (Heads{{1, 1}}));
  EXPECT_EQ(load_head_profile(folder_.string() + "@0")->streaming, Heads{});
  EXPECT_EQ(load_head_profile(folder_.string() + "@1")->streaming.size(), 6u);
}

TEST_F(DuoFolder, ErrorsSayWhatAndWhere) {
  EXPECT_THAT(load_head_profile(folder_.string() + "@half").status().message(), HasSubstr("@0.5"));
  write("full_attention_heads.tsv", "0.9\t0.1\n0.3\n");
  EXPECT_THAT(load_head_profile(folder_).status().message(), HasSubstr("line 2 has 1 heads"));
  write("full_attention_heads.tsv", "0.9\tx\n");
  EXPECT_THAT(load_head_profile(folder_).status().message(), HasSubstr("line 1 has no number at column 5"));
  write("full_attention_heads.tsv", "\n");
  EXPECT_THAT(load_head_profile(folder_).status().message(), HasSubstr("no heads"));
  write("config.json", R"({"recent_size": 256})");
  EXPECT_THAT(load_head_profile(folder_).status().message(), HasSubstr("sink_size"));
  EXPECT_FALSE(load_head_profile((folder_ / "nothing").string()).ok());
}

ModelConfig config_of(std::vector<std::int32_t> windows, std::int32_t heads) {
  ModelConfig config;
  config.num_layers = static_cast<std::int32_t>(windows.size());
  config.num_kv_heads = heads;
  config.head_dim = 32;
  config.layer_window = std::move(windows);
  return config;
}

TEST(KvGrouping, APlainModelHasOneGroupAndWindowsAnother) {
  const KvGrouping plain = make_kv_grouping(config_of({0, 0, 0}, 2), {0, 2}, nullptr);
  ASSERT_EQ(plain.groups.size(), 1u);
  EXPECT_TRUE(plain.groups[0].heads.empty());
  EXPECT_EQ(plain.attention.size(), 1u);
  const KvGrouping windows = make_kv_grouping(config_of({8, 0, 8}, 2), {0, 2}, nullptr);
  ASSERT_EQ(windows.groups.size(), 2u);
  EXPECT_EQ(windows.groups[0].layers, (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(windows.groups[0].window_tokens, 8);
  EXPECT_EQ(windows.attention_of, (std::vector<std::size_t>{0, 1, 0}));
}

TEST(KvGrouping, StreamingHeadsAreAGroupByLayerAndHead) {
  HeadProfile profile;
  profile.streaming = {{0, 0}, {0, 1}, {0, 2}, {1, 1}, {3, 1}};
  const KvGrouping layout = make_kv_grouping(config_of({0, 0, 0, 0}, 3), {0, 3}, &profile);
  ASSERT_EQ(layout.groups.size(), 2u);
  const KvGroupSpec& full = layout.groups[0];
  const KvGroupSpec& rings = layout.groups[1];
  EXPECT_EQ(full.layers, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(full.heads, (std::vector<std::vector<std::int32_t>>{{0, 2}, {0, 1, 2}, {0, 2}}));
  EXPECT_EQ(full.window_tokens, 0);
  EXPECT_EQ(rings.layers, (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(rings.heads, (std::vector<std::vector<std::int32_t>>{{0, 1, 2}, {1}, {1}}));
  EXPECT_EQ(rings.window_tokens, 256);
  EXPECT_EQ(rings.sink_tokens, 64);
  EXPECT_EQ(layout.attention_of, (std::vector<std::size_t>{0, 1, 2, 1}));
  ASSERT_EQ(layout.attention[1].ranges.size(), 3u);
  EXPECT_EQ(layout.attention[1].ranges[1].head_begin, 1);
  EXPECT_EQ(layout.attention[1].ranges[1].head_end, 2);
  EXPECT_EQ(layout.attention[1].ranges[1].kv_group, 1u);
  EXPECT_EQ(layout.attention[2].ranges.size(), 1u);
}

TEST(KvGrouping, ProfilesMustFitTheModel) {
  HeadProfile profile;
  profile.streaming = {{1, 1}};
  EXPECT_TRUE(check_head_profile(profile, config_of({0, 0}, 2)).ok());
  EXPECT_THAT(check_head_profile(profile, config_of({0, 0}, 1)).message(), HasSubstr("layer 1, KV head 1"));
  EXPECT_EQ(check_head_profile(profile, config_of({0}, 2)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(check_head_profile(profile, config_of({0, 8}, 2)).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
