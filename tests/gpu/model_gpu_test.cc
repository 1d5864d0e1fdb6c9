// Models on a GPU: logits of tiny random models of every family against transformers: whole prompts, chunks, decode.
// Run by `make gpu-test`. FOVEA_TEST_GOLDENS: their folder, elsewhere than in the source.
#include <gtest/gtest.h>

#include <cstdio>

#include "engine/model/model_golden_test_util.h"

namespace fovea {
namespace {

constexpr const char* kDevice = "cuda:0";

class GpuGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = load_golden(kGoldens / GetParam());
    auto runner = ModelHarness::create(kGoldens / GetParam(), DType::kBF16, {}, {}, kDevice);
    if (runner.status().code() == StatusCode::kUnavailable) GTEST_SKIP() << runner.status().to_string();
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    runner_ = std::move(*runner);
  }
  // Rounding activations to bf16 between operators as transformers does loses about as much.
  void expect_as_good(const std::vector<float>& logits, std::span<const float> exact, const char* what) {
    const Difference ours = difference(logits, exact);
    const Difference theirs = difference(golden_.logits_bf16, golden_.logits_fp32);
    printf("%-20s %-10s rms %.5f max %.4f; transformers in bf16 rms %.5f max %.4f\n", GetParam().c_str(), what,
           ours.rms, ours.max, theirs.rms, theirs.max);
    EXPECT_LT(ours.rms, 1.25 * theirs.rms);
    EXPECT_LT(ours.max, 2.0 * theirs.max);
  }

  Golden golden_;
  std::unique_ptr<ModelHarness> runner_;
};

TEST_P(GpuGoldens, PrefillWholeAndInChunks) {
  expect_as_good(golden_prefill(*runner_, golden_, 1000, true), golden_.logits_fp32, "prefill");
  expect_as_good(golden_prefill(*runner_, golden_, 7, true), golden_.logits_fp32, "chunks");
}

TEST_P(GpuGoldens, Decode) {
  std::vector<int> requests;
  std::vector<std::vector<std::int32_t>> next = golden_.sequences;
  for (std::size_t i = 0; i < next.size(); ++i) requests.push_back(runner_->add_request());
  const auto vocab = static_cast<std::size_t>(golden_.vocab);
  const auto steps = static_cast<std::size_t>(golden_.decode_steps);
  std::vector<float> all(next.size() * steps * vocab);
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<ModelHarness::Piece> pieces;
    for (std::size_t i = 0; i < next.size(); ++i) pieces.push_back({requests[i], next[i]});
    const auto logits = runner_->forward(pieces, ModelHarness::Logits::kLast);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    for (std::size_t i = 0; i < next.size(); ++i) {
      std::copy_n(logits->begin() + static_cast<std::ptrdiff_t>(i * vocab), vocab,
                  all.begin() + static_cast<std::ptrdiff_t>((i * steps + step) * vocab));
      next[i] = {golden_.decoded[i][step]};
    }
  }
  expect_as_good(all, golden_.decode_logits, "decode");
}

INSTANTIATE_TEST_SUITE_P(Families, GpuGoldens, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fovea
