// Configurations: what each family's fields mean, and that every bad one is refused by name.
#include "engine/model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"

namespace fovea {
namespace {

Json base_config(const char* type) {
  return {{"model_type", type},       {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 4},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 100},        {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5}};
}

Result<ModelConfig> parse(const Json& config, const std::string& generation = "") {
  return parse_model_config(config.dump(), generation);
}

ModelConfig parse_ok(const Json& config) {
  auto parsed = parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return parsed.ok() ? *parsed : ModelConfig{};
}

TEST(ModelConfig, Llama31) {
  Json json = base_config("llama");
  json["rope_theta"] = 500000.0;
  json["rope_scaling"] = {{"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192},
                          {"rope_type", "llama3"}};
  json["eos_token_id"] = {7, 8, 9};
  const auto config = parse(json, R"({"eos_token_id":[8,5],"temperature":0.6,"top_p":0.9,"do_sample":true})");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_EQ(config->rope.rotary_dim, 16);
  EXPECT_EQ(config->max_position, 4096);
  EXPECT_EQ(config->eos_tokens, (std::vector<std::int32_t>{7, 8, 9, 5}));
  EXPECT_FLOAT_EQ(config->default_temperature, 0.6f);
  EXPECT_FLOAT_EQ(config->default_top_p, 0.9f);
  EXPECT_EQ(config->layer_window, std::vector<std::int32_t>(4, 0));
}

TEST(ModelConfig, BiasesFollowTheFamily) {
  Json llama = base_config("llama");
  llama["attention_bias"] = true;
  EXPECT_TRUE(parse_ok(llama).attention_bias);
  EXPECT_TRUE(parse_ok(llama).output_bias);
  EXPECT_TRUE(parse_ok(base_config("qwen2")).attention_bias);
  EXPECT_FALSE(parse_ok(base_config("qwen2")).output_bias);
  EXPECT_FALSE(parse_ok(base_config("qwen3")).attention_bias);
  EXPECT_TRUE(parse_ok(base_config("qwen3")).qk_norm == QkNorm::kHead);
  EXPECT_EQ(parse_ok(base_config("qwen3")).head_dim, 128);
}

TEST(ModelConfig, WindowsFollowTheFamily) {
  Json mistral = base_config("mistral");
  EXPECT_EQ(parse_ok(mistral).layer_window, std::vector<std::int32_t>(4, 4096));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse_ok(mistral).layer_window, std::vector<std::int32_t>(4, 0));
  Json qwen = base_config("qwen2");
  qwen["sliding_window"] = 32;
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(parse_ok(qwen).layer_window, std::vector<std::int32_t>(4, 0));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(parse_ok(qwen).layer_window, (std::vector<std::int32_t>{0, 32, 32, 32}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse_ok(qwen).layer_window, (std::vector<std::int32_t>{32, 0, 0, 0}));
}

TEST(ModelConfig, Gemma2) {
  Json json = base_config("gemma2");
  json["query_pre_attn_scalar"] = 144;
  json["head_dim"] = 32;
  json["attn_logit_softcapping"] = nullptr;
  json["sliding_window"] = 16;
  const ModelConfig config = parse_ok(json);
  EXPECT_FLOAT_EQ(config.attention_scale, 1.0f / 12.0f);
  EXPECT_EQ(config.attention_softcap, 0.0f);
  EXPECT_EQ(config.final_softcap, 30.0f);
  EXPECT_TRUE(config.norm_plus_one && config.post_norms && config.tie_word_embeddings);
  EXPECT_FLOAT_EQ(config.embedding_scale, 8.0f);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.layer_window, (std::vector<std::int32_t>{16, 0, 16, 0}));
}

TEST(ModelConfig, YarnAndLinearStretchTheContext) {
  Json json = base_config("qwen2");
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
  ModelConfig config = parse_ok(json);
  EXPECT_EQ(config.max_position, 16384);
  EXPECT_NEAR(config.rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  json["rope_scaling"]["attention_factor"] = 1.25;
  EXPECT_EQ(parse_ok(json).rope.attention_factor, 1.25);
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(parse_ok(json).max_position, 8192);
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}, {"rope_theta", 5000.0}};
  config = parse_ok(json);
  EXPECT_EQ(config.max_position, 12288);
  EXPECT_EQ(config.rope.theta, 5000.0);
}

TEST(ModelConfig, GreedyWhereGenerationSaysSo) {
  const auto config = parse(base_config("llama"), R"({"do_sample":false,"temperature":0.7,"top_k":40})");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->default_temperature, 0.0f);
  EXPECT_EQ(config->default_top_k, 40);
  EXPECT_LT(parse_ok(base_config("llama")).default_temperature, 0.0f);
}

TEST(ModelConfig, Gemma3RotatesLayersWithAWindowInTheirOwnWay) {
  Json json = base_config("gemma3_text");
  json["sliding_window"] = 16;
  json["sliding_window_pattern"] = 2;
  json["rope_local_base_freq"] = 5000.0;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  ModelConfig config = parse_ok(json);
  EXPECT_EQ(config.layer_window, (std::vector<std::int32_t>{16, 0, 16, 0}));
  EXPECT_EQ(config.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(config.rope.theta, 1e6);
  ASSERT_TRUE(config.window_rope.has_value());
  EXPECT_EQ(config.window_rope->kind, RopeKind::kPlain);
  EXPECT_EQ(config.window_rope->theta, 5000.0);
  EXPECT_EQ(config.max_position, 4096);
  EXPECT_EQ(config.attention_softcap, 0.0f);
  EXPECT_EQ(config.final_softcap, 0.0f);
  EXPECT_EQ(config.qk_norm, QkNorm::kHead);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parse(json).status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelConfig, Olmo2HasNormsBehindItsBlocksAlone) {
  const ModelConfig config = parse_ok(base_config("olmo2"));
  EXPECT_FALSE(config.pre_norms);
  EXPECT_TRUE(config.post_norms);
  EXPECT_FALSE(config.norm_plus_one);
  EXPECT_EQ(config.qk_norm, QkNorm::kProjection);
}

Json phi3_config() {
  Json json = base_config("phi3");
  json["original_max_position_embeddings"] = 1024;
  json["partial_rotary_factor"] = 0.5;
  json["rope_scaling"] = {
      {"type", "longrope"}, {"short_factor", {1.0, 1.25, 1.5, 2.0}}, {"long_factor", {1.0, 4.0, 8.0, 16.0}}};
  return json;
}

TEST(ModelConfig, Phi3ChoosesLongRopeByItsContext) {
  Json json = phi3_config();
  ModelConfig config = parse_ok(json);
  EXPECT_TRUE(config.fused_projections);
  EXPECT_EQ(config.rope.kind, RopeKind::kLongRope);
  EXPECT_EQ(config.rope.rotary_dim, 8);
  EXPECT_EQ(config.rope.frequency_divisors, (std::vector<double>{1.0, 4.0, 8.0, 16.0}));
  EXPECT_NEAR(config.rope.attention_factor, std::sqrt(1.0 + std::log(4.0) / std::log(1024.0)), 1e-12);
  EXPECT_EQ(config.layer_window, std::vector<std::int32_t>(4, 0));
  json["max_position_embeddings"] = 1024;
  config = parse_ok(json);
  EXPECT_EQ(config.rope.frequency_divisors, (std::vector<double>{1.0, 1.25, 1.5, 2.0}));
  EXPECT_EQ(config.rope.attention_factor, 1.0);
}

TEST(ModelConfig, LongRopeListsAreChecked) {
  for (const char* lists : {R"({"short_factor":[1,1,1,1]})", R"({"short_factor":[1,1,1],"long_factor":[1,1,1,1]})",
                            R"({"short_factor":[1,1,1,1],"long_factor":[1,1,0,1]})",
                            R"({"short_factor":[1,1,1,1],"long_factor":[1,1,"2",1]})",
                            R"({"short_factor":[1,1,1,1],"long_factor":[1,1,1e300,1]})"}) {
    Json json = phi3_config();
    json["rope_scaling"] = Json::parse(lists);
    json["rope_scaling"]["rope_type"] = "longrope";
    EXPECT_EQ(parse(json).status().code(), StatusCode::kInvalidArgument) << lists;
  }
  Json json = phi3_config();
  json["original_max_position_embeddings"] = 1;
  EXPECT_EQ(parse(json).status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelConfig, PartialRotationCountsWhereTheFamilyReadsIt) {
  Json llama = base_config("llama");
  llama["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(parse_ok(llama).rope.rotary_dim, 16);
}

struct BadField {
  const char* name;
  const char* type;
  const char* key;
  const char* value;  // JSON
  StatusCode code;
};

class BadConfigs : public ::testing::TestWithParam<BadField> {};

TEST_P(BadConfigs, NamesTheField) {
  const BadField& bad = GetParam();
  Json json = base_config(bad.type);
  json[bad.key] = Json::parse(bad.value);
  const auto parsed = parse(json);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), bad.code) << parsed.status().to_string();
  EXPECT_NE(parsed.status().message().find("config.json"), std::string::npos) << parsed.status().to_string();
  EXPECT_NE(parsed.status().message().find(bad.key), std::string::npos) << parsed.status().to_string();
}

constexpr auto kInvalid = StatusCode::kInvalidArgument;
constexpr auto kUnsupported = StatusCode::kUnsupported;
INSTANTIATE_TEST_SUITE_P(
    Fields, BadConfigs,
    ::testing::Values(
        BadField{"Family", "llama", "model_type", "\"bert\"", kUnsupported},
        BadField{"Classifier", "llama", "architectures", "[\"LlamaForSequenceClassification\"]", kUnsupported},
        BadField{"Architectures", "llama", "architectures", "\"LlamaForCausalLM\"", kInvalid},
        BadField{"FamilyType", "llama", "model_type", "3", kInvalid},
        BadField{"HiddenZero", "llama", "hidden_size", "0", kInvalid},
        BadField{"HiddenHuge", "llama", "hidden_size", "1e12", kInvalid},
        BadField{"HiddenText", "llama", "hidden_size", "\"64\"", kInvalid},
        BadField{"HiddenNull", "llama", "hidden_size", "null", kInvalid},
        BadField{"HiddenIndivisible", "llama", "hidden_size", "66", kInvalid},
        BadField{"Layers", "llama", "num_hidden_layers", "-4", kInvalid},
        BadField{"KvHeads", "llama", "num_key_value_heads", "3", kInvalid},
        BadField{"HeadDimOdd", "llama", "head_dim", "15", kInvalid},
        BadField{"Vocab", "llama", "vocab_size", "1e10", kInvalid},
        BadField{"Positions", "llama", "max_position_embeddings", "0", kInvalid},
        BadField{"Eps", "llama", "rms_norm_eps", "-1", kInvalid},
        BadField{"Act", "llama", "hidden_act", "\"relu\"", kUnsupported},
        BadField{"GemmaAct", "gemma2", "hidden_activation", "\"relu\"", kUnsupported},
        BadField{"Theta", "llama", "rope_theta", "0", kInvalid},
        BadField{"RopeKind", "llama", "rope_scaling", "{\"type\":\"spiral\"}", kUnsupported},
        BadField{"RopeFactor", "llama", "rope_scaling", "{\"type\":\"linear\"}", kInvalid},
        BadField{"RopeFactorZero", "llama", "rope_scaling", "{\"type\":\"linear\",\"factor\":0}", kInvalid},
        BadField{"RopeNoOriginal", "llama", "rope_scaling", "{\"type\":\"llama3\",\"factor\":8}", kInvalid},
        BadField{"RopeOrder", "llama", "rope_scaling",
                 "{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
                 "\"original_max_position_embeddings\":64}",
                 kInvalid},
        BadField{"RopeNotObject", "llama", "rope_scaling", "[1]", kInvalid},
        BadField{"RopeByLayer", "llama", "rope_parameters", "{\"full_attention\":{}}", kUnsupported},
        BadField{"Window", "mistral", "sliding_window", "0", kInvalid},
        BadField{"LayerTypesCount", "qwen2", "layer_types", "[\"full_attention\"]", kInvalid},
        BadField{"LayerTypesKind", "qwen2", "layer_types",
                 "[\"linear_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", kUnsupported},
        BadField{"Bool", "llama", "tie_word_embeddings", "\"yes\"", kInvalid},
        BadField{"EosRange", "llama", "eos_token_id", "100", kInvalid},
        BadField{"EosType", "llama", "eos_token_id", "[1,\"x\"]", kInvalid},
        BadField{"Dtype", "llama", "torch_dtype", "\"int8\"", kUnsupported},
        BadField{"Quantized", "llama", "quantization_config", "{\"bits\":4}", kUnsupported},
        BadField{"QuantizedList", "llama", "quantization_config", "[8]", kInvalid},
        BadField{"Gptq", "llama", "quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}", kUnsupported},
        BadField{"Fp8Scheme", "llama", "quantization_config",
                 "{\"quant_method\":\"fp8\",\"activation_scheme\":\"odd\"}", kUnsupported},
        BadField{"Fp8Fmt", "llama", "quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", kUnsupported},
        BadField{"Fp8Block", "llama", "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}",
                 kUnsupported},
        BadField{"CtPacked", "llama", "quantization_config",
                 "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{}}",
                 kUnsupported},
        BadField{"CtNoGroups", "llama", "quantization_config", "{\"quant_method\":\"compressed-tensors\"}", kInvalid},
        BadField{"CtInt8", "llama", "quantization_config",
                 "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,"
                 "\"type\":\"int\"}}}}",
                 kUnsupported},
        BadField{"CtGroup", "llama", "quantization_config",
                 "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,"
                 "\"type\":\"float\",\"strategy\":\"group\"}}}}",
                 kUnsupported},
        BadField{"CtScheme", "llama", "quantization_config",
                 "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"W4A16\":[\"Linear\"]}}", kUnsupported},
        BadField{"CtNoWeights", "llama", "quantization_config",
                 "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]}}}",
                 kUnsupported},
        BadField{"GemmaScalar", "gemma2", "query_pre_attn_scalar", "0", kInvalid},
        BadField{"GemmaCap", "gemma2", "final_logit_softcapping", "-30", kInvalid}),
    [](const auto& info) { return info.param.name; });

TEST(ModelConfig, RefusesWhatIsNoConfiguration) {
  EXPECT_EQ(parse_model_config("", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parse_model_config("[]", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parse_model_config("{}", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(parse_model_config(std::string(100000, '['), "").ok());
  const auto generation = parse(base_config("llama"), R"({"top_p":7})");
  EXPECT_EQ(generation.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(generation.status().message().find("generation_config.json"), std::string::npos);
  EXPECT_EQ(load_model_config("/nonexistent/folder").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fovea
