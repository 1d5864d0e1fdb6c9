// Loading: dummy weights are reproducible and of any family; folders with missing or misshapen tensors and too large
// models are refused with what and where.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/model/model_test_util.h"
#include "engine/model/safetensors.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

class ModelLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("fovea_load_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write_config(const Json& json) { std::ofstream(folder_ / "config.json") << json.dump(); }
  static Json small(const char* type) {
    return {{"model_type", type},     {"hidden_size", 64},        {"intermediate_size", 96},
            {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
            {"vocab_size", 100},      {"head_dim", 32},           {"max_position_embeddings", 256}};
  }
  std::vector<float> dummy_logits(std::uint64_t seed) {
    ModelLoadOptions options;
    options.format = LoadFormat::kDummy;
    options.dummy_seed = seed;
    auto runner = ModelHarness::create(folder_, DType::kBF16, {}, options);
    EXPECT_TRUE(runner.ok()) << runner.status().to_string();
    if (!runner.ok()) return {};
    const std::vector<std::int32_t> tokens = {1, 5, 9, 77, 5};
    const ModelHarness::Piece piece{(*runner)->add_request(), tokens};
    auto logits = (*runner)->forward({&piece, 1});
    EXPECT_TRUE(logits.ok()) << logits.status().to_string();
    return logits.ok() ? *logits : std::vector<float>{};
  }
  Status load(const ModelLoadOptions& options = {}) {
    auto device = create_device("cpu", {});
    EXPECT_TRUE(device.ok());
    return load_model(folder_, **device, options).status();
  }
  void copy_golden(const char* name) {
    fs::copy(fs::path(FOVEA_SOURCE_DIR) / "tests/goldens/models" / name, folder_, fs::copy_options::recursive);
    fs::permissions(folder_ / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  }

  fs::path folder_;
};

TEST_F(ModelLoad, DummyWeightsOfEveryFamilyAreReproducible) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma2"}) {
    write_config(small(type));
    const auto logits = dummy_logits(1);
    EXPECT_EQ(logits, dummy_logits(1));
    EXPECT_NE(logits, dummy_logits(2));
    double squares = 0.0;
    for (const float value : logits) squares += double{value} * value;
    const double deviation = std::sqrt(squares / static_cast<double>(logits.size()));
    EXPECT_GT(deviation, 0.05) << type;
    EXPECT_LT(deviation, 50.0) << type;
  }
}

TEST_F(ModelLoad, RefusesDummyModelsLargerThanMemory) {
  Json json = small("llama");
  json["hidden_size"] = 65536;
  json["intermediate_size"] = 262144;
  json["num_hidden_layers"] = 500;
  write_config(json);
  ModelLoadOptions options;
  options.format = LoadFormat::kDummy;
  const Status status = load(options);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("MB"), std::string::npos) << status.message();
}

TEST_F(ModelLoad, NamesMissingAndMisshapenTensors) {
  copy_golden("llama31");
  ASSERT_TRUE(load().ok()) << load().to_string();
  Json json = *read_json_file(folder_ / "config.json");
  const auto with = [&](const char* key, int value) {
    Json changed = json;
    changed[key] = value;
    write_config(changed);
    return load();
  };
  Status status = with("num_hidden_layers", 3);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("model.layers.2.input_layernorm.weight"), std::string::npos) << status.message();
  status = with("intermediate_size", 128);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(
      status.message().find("model.safetensors: model.layers.0.mlp.gate_proj.weight is [96, 64], expected [128, 64]"),
      std::string::npos)
      << status.message();
  status = with("vocab_size", 127);
  EXPECT_NE(status.message().find("embed_tokens"), std::string::npos) << status.message();
}

TEST_F(ModelLoad, WarnsOfLayersThatTheConfigLeavesOut) {
  copy_golden("llama2");
  const LogLevel before = log_level();
  std::vector<std::string> said;
  set_log_level(LogLevel::kWarning);
  set_log_sink([&](LogLevel, std::string_view text) { said.emplace_back(text); });
  EXPECT_TRUE(load().ok());
  EXPECT_TRUE(said.empty()) << said[0];
  Json config = Json::parse(*read_file((folder_ / "config.json").string(), 1 << 20));
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() - 1;
  write_config(config);
  EXPECT_TRUE(load().ok());
  set_log_level(before);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("num_hidden_layers"), std::string::npos) << said[0];
}

TEST_F(ModelLoad, ATiedModelThatStoresAnotherHeadTakesItAndWarns) {
  copy_golden("llama31");
  const std::vector<std::int32_t> tokens = {1, 5, 9};
  std::vector<std::vector<float>> logits;
  std::vector<std::string> said;
  const LogLevel before = log_level();
  set_log_level(LogLevel::kWarning);
  set_log_sink([&](LogLevel, std::string_view text) { said.emplace_back(text); });
  for (const bool tied : {false, true}) {
    Json config = Json::parse(*read_file((folder_ / "config.json").string(), 1 << 20));
    config["tie_word_embeddings"] = tied;
    write_config(config);
    auto runner = ModelHarness::create(folder_, DType::kF32, {});
    ASSERT_TRUE(runner.ok());
    const ModelHarness::Piece piece{(*runner)->add_request(), tokens};
    logits.push_back(*(*runner)->forward({&piece, 1}));
    EXPECT_EQ(said.size(), tied ? 1u : 0u);
  }
  set_log_level(before);
  set_log_sink({});
  EXPECT_EQ(logits[0], logits[1]);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("lm_head.weight"), std::string::npos) << said[0];
}

TEST_F(ModelLoad, RefusesATruncatedFile) {
  copy_golden("llama31");
  const auto size = fs::file_size(folder_ / "model.safetensors");
  fs::resize_file(folder_ / "model.safetensors", size - 100);
  EXPECT_EQ(load().code(), StatusCode::kDataLoss) << load().to_string();
  fs::resize_file(folder_ / "model.safetensors", 100);
  EXPECT_EQ(load().code(), StatusCode::kDataLoss) << load().to_string();
}

TEST_F(ModelLoad, ChecksEveryForward) {
  copy_golden("llama31");
  auto runner = ModelHarness::create(folder_, DType::kF32, {});
  ASSERT_TRUE(runner.ok());
  const std::vector<std::int32_t> outside = {1, 128}, negative = {-1}, fine = {1};
  const ModelHarness::Piece bad{(*runner)->add_request(), outside}, below{(*runner)->add_request(), negative};
  EXPECT_EQ((*runner)->forward({&bad, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*runner)->forward({&below, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*runner)->model().forward({}, {}).code(), StatusCode::kOutOfRange);
  const ModelHarness::Piece good{(*runner)->add_request(), fine};
  EXPECT_TRUE((*runner)->forward({&good, 1}).ok());
}

TEST_F(ModelLoad, WeightBytesAreTheFilesWithoutUntiedEmbeddings) {
  copy_golden("llama31");
  auto runner = ModelHarness::create(folder_, DType::kF32, {});
  ASSERT_TRUE(runner.ok());
  // All tensors of the file but the table of 128 x 64 bf16, of which a step reads one row.
  std::size_t expected = 0;
  const auto store = TensorStore::open(folder_ / "model.safetensors");
  expected = store->total_bytes() - 128 * 64 * 2;
  EXPECT_EQ((*runner)->model().weight_bytes(), expected);
}

}  // namespace
}  // namespace fovea
