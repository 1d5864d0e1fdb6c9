// Models with fp8 weights on the CPU compute what the same numbers in fp32 do, in every layout of scales; quantizing at
// load stays near; and what cannot be loaded is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/fp8_model_test_util.h"
#include "engine/model/model_test_util.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

std::vector<float> logits_of(const std::string& folder, std::size_t tokens, const ModelLoadOptions& options = {},
                             bool bf16 = false) {
  DeviceOptions device;
  device.num_threads = 2;
  device.bf16_products = bf16;
  auto runner = ModelHarness::create(folder, DType::kF32, device, options);
  EXPECT_TRUE(runner.ok()) << runner.status().to_string();
  if (!runner.ok()) return {};
  std::vector<std::int32_t> prompt;
  for (std::size_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<std::int32_t>(i * 37 % 100));
  const ModelHarness::Piece piece{(*runner)->add_request(), prompt};
  auto logits = (*runner)->forward({&piece, 1});
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  return logits.ok() ? *logits : std::vector<float>{};
}

// Root mean square of the difference, of that of the second.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0.0, all = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    all += b[i] * b[i];
  }
  return std::sqrt(error / all);
}

class Fp8Model : public ::testing::TestWithParam<Fp8Layout> {};

TEST_P(Fp8Model, ComputesWhatItsNumbersTimesTheirScalesDo) {
  const Fp8Checkpoint checkpoint(GetParam());
  Json config = fp8_config();
  if (GetParam() == Fp8Layout::kBlock) config["weight_block_size"] = {128, 128};
  const std::string wide = checkpoint.write_wide(), stored = checkpoint.write_stored(config);
  for (const std::size_t tokens : {1, 3, 40}) {
    const std::vector<float> expected = logits_of(wide, tokens);
    EXPECT_LT(distance(logits_of(stored, tokens), expected), 1e-5) << tokens << " tokens";
    // With x of many rows rounded to bf16.
    EXPECT_LT(distance(logits_of(stored, tokens, {}, true), expected), 0.01) << tokens << " tokens";
  }
  if (GetParam() == Fp8Layout::kBlock) return;
  const char* const strategy = GetParam() == Fp8Layout::kTensor ? "tensor" : "channel";
  EXPECT_EQ(logits_of(checkpoint.write_stored(compressed_tensors_config(strategy)), 9), logits_of(stored, 9));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Fp8Model,
                         ::testing::Values(Fp8Layout::kTensor, Fp8Layout::kChannel, Fp8Layout::kBlock));

TEST(Fp8Weights, AtLoadStayNearAndTakeAByteEach) {
  const Fp8Checkpoint checkpoint(Fp8Layout::kChannel);
  const std::string wide = checkpoint.write_wide();
  ModelLoadOptions options;
  options.fp8_weights = true;
  std::int64_t seen = 0, all = 0;
  options.on_load = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, seen);
    seen = done;
    all = total;
  };
  const std::vector<float> logits = logits_of(wide, 20, options);
  options.on_load = nullptr;
  const double off = distance(logits, logits_of(wide, 20));
  EXPECT_LT(off, 0.1);
  EXPECT_GT(off, 1e-5);
  EXPECT_EQ(seen, all);
  auto device = create_device("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto model = load_model(wide, **device, options);
  ASSERT_TRUE(model.ok());
  const std::size_t matrices = 2 * (192 * (128 + 2 * 64) + 128 * 192 + 3 * 320 * 192);
  EXPECT_EQ((*model)->weight_bytes(), matrices + (100 * 192 + 5 * 192) * sizeof(float));
}

Status load(const std::string& folder) {
  auto device = create_device("cpu", {});
  EXPECT_TRUE(device.ok());
  return load_model(folder, **device, {}).status();
}

TEST(Fp8Weights, WhatIsRefusedIsNamed) {
  const std::string gate = "model.layers.1.mlp.gate_proj.weight";
  {
    Fp8Checkpoint checkpoint(Fp8Layout::kChannel);
    checkpoint.tensor(gate + "_scale").name = gate + "_zero";
    EXPECT_THAT(load(checkpoint.write_stored(fp8_config())).message(),
                HasSubstr(gate + " is fp8_e4m3 and has no scales"));
  }
  {
    Fp8Checkpoint checkpoint(Fp8Layout::kChannel);
    Fp8Checkpoint::Tensor& scales = checkpoint.tensor(gate + "_scale");
    scales.shape = {160, 2};
    EXPECT_THAT(load(checkpoint.write_stored(fp8_config())).message(),
                HasSubstr(gate + " are [160, 2], expected [1], [320, 1] or [3, 2] for [320, 192]"));
    scales.shape = {320, 1};
    scales.type = "I32";
    EXPECT_THAT(load(checkpoint.write_stored(fp8_config())).message(), HasSubstr("expected f32, bf16 or f16"));
  }
  {
    Fp8Checkpoint checkpoint(Fp8Layout::kTensor);
    Fp8Checkpoint::Tensor& weight = checkpoint.tensor(gate);
    weight.type = "BF16";
    weight.bytes += weight.bytes;
    EXPECT_THAT(load(checkpoint.write_stored(fp8_config())).message(), HasSubstr("is bf16 and has scales"));
  }
}

// A matrix that a checkpoint left in bf16 beside fp8 ones that are multiplied along with it.
TEST(Fp8Weights, PartsOfAFusedMatrixMayDiffer) {
  Fp8Checkpoint checkpoint(Fp8Layout::kTensor);
  const std::string wide = checkpoint.write_wide();
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  Fp8Checkpoint::Tensor& scale = checkpoint.tensor(name + "_scale");
  float by = 0.0f;
  std::memcpy(&by, scale.bytes.data(), sizeof by);
  scale.name = "unused";
  Fp8Checkpoint::Tensor& weight = checkpoint.tensor(name);
  std::string halves;
  for (const char code : weight.bytes) {
    const std::uint16_t bits = float_to_bf16(e4m3_to_float(static_cast<std::uint8_t>(code)) * by);
    halves.append(reinterpret_cast<const char*>(&bits), 2);
  }
  weight.type = "BF16";
  weight.bytes = halves;
  EXPECT_LT(distance(logits_of(checkpoint.write_stored(fp8_config()), 12), logits_of(wide, 12)), 0.01);
}

}  // namespace
}  // namespace fovea
