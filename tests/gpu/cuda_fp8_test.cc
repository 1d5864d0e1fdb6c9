// Models with fp8 weights on a CUDA device without a GPU (cuda/testing/fake_driver.h, host_kernels.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/fp8_model_test_util.h"
#include "engine/model/model_test_util.h"
#include "tests/gpu/host_kernels.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

// Before anything asks for the driver or for kernels.
const bool kPrepared =
    fake::name_driver_and_cache() && ::setenv("FOVEA_CUBLASLT", fake::library_path().c_str(), 1) == 0;

constexpr const char* kDevice = "cuda:0";

void prepare() {
  ASSERT_TRUE(kPrepared);
  fake::state() = {};
  fake::state().memory_bytes = std::size_t{1} << 30;
  host_kernels::install(32, VariantId::kPlain, abi::GateKind::kSilu);
}

// One row by the kernel of few rows, many by cuBLASLt with activations in e4m3, either against the numbers in fp32 on
// the host; widths that are multiples of 64 and of 16, and of neither where weights are expanded.
TEST(CudaFp8, LogitsOfCheckpointsAndOfWeightsQuantizedAtLoad) {
  prepare();
  const Fp8Checkpoint checkpoint(Fp8Layout::kChannel);
  const std::string wide = checkpoint.write_wide(), stored = checkpoint.write_stored(fp8_config());
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back(i * 37 % 100);
  const auto logits = [&](const std::string& folder, std::size_t tokens, const char* device, bool to_fp8) {
    ModelLoadOptions options;
    options.fp8_weights = to_fp8;
    DeviceOptions one_thread;
    one_thread.num_threads = 1;
    auto runner = ModelHarness::create(folder, DType::kBF16, one_thread, options, device);
    EXPECT_TRUE(runner.ok()) << runner.status().to_string();
    const ModelHarness::Piece piece{(*runner)->add_request(), std::span(prompt).first(tokens)};
    auto made = (*runner)->forward({&piece, 1});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? *made : std::vector<float>(tokens * 100);
  };
  for (const std::size_t tokens : {1, 20}) {
    const std::vector<float> expected = logits(wide, tokens, "cpu", false);
    for (const bool to_fp8 : {false, true}) {
      fake::state().calls.clear();
      const std::vector<float> actual = logits(to_fp8 ? wide : stored, tokens, kDevice, to_fp8);
      double error = 0.0, all = 0.0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        all += expected[i] * expected[i];
      }
      EXPECT_LT(std::sqrt(error / all), tokens == 1 && !to_fp8 ? 0.02 : 0.1) << tokens << " tokens, " << to_fp8;
    }
  }
}

// Nothing is taken from the device before everything was looked at.
TEST(CudaFp8, WhatIsRefusedIsRefusedFirst) {
  prepare();
  Fp8Checkpoint checkpoint(Fp8Layout::kChannel);
  checkpoint.tensor("model.layers.1.mlp.down_proj.weight_scale").name = "other";
  const std::string folder = checkpoint.write_stored(fp8_config());
  auto device = create_device(kDevice, {});
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  fake::state().calls.clear();
  EXPECT_THAT(load_model(folder, **device, {}).status().message(),
              HasSubstr("down_proj.weight is fp8_e4m3 and has no"));
  EXPECT_EQ(fake::state().calls["cuMemAlloc_v2"], 0);
  // Too large a model likewise.
  fake::state().memory_bytes -= (*device)->memory_available() - (std::size_t{64} << 10);
  const Status status = load_model(checkpoint.write_wide(), **device, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("memory are left"));
  EXPECT_EQ(fake::state().calls["cuMemAlloc_v2"], 0);
}

}  // namespace
}  // namespace fovea
