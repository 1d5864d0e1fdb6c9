// Logits of tiny random models of every family against transformers (tests/goldens/models, made by
// tests/goldens/make_goldens.py): whole prompts, chunks, decode, and batches that mix them, over a paged KV pool with
// pages in random order. FOVEA_TEST_GOLDENS names another folder: `make test-peers` makes models anew.
#include <gtest/gtest.h>

#include "base/file.h"
#include "engine/model/model.h"
#include "engine/model/model_golden_test_util.h"

namespace fovea {
namespace {

class GoldenModels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { golden_ = load_golden(kGoldens / GetParam()); }

  static DeviceOptions exact() {
    DeviceOptions options;
    options.bf16_products = false;
    return options;
  }
  void open(DType kv, const DeviceOptions& options = exact()) {
    auto runner = ModelHarness::create(kGoldens / GetParam(), kv, options);
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    runner_ = std::move(*runner);
  }
  std::vector<float> prefill(int chunk, bool together) { return golden_prefill(*runner_, golden_, chunk, together); }

  Golden golden_;
  std::unique_ptr<ModelHarness> runner_;
};

// Both sides compute in fp32 on the same stored weights and differ in the order of sums alone.
constexpr double kFp32Bar = 1e-4;

TEST_P(GoldenModels, PrefillMatchesInFp32) {
  open(DType::kF32);
  for (const auto& [chunk, together] : {std::pair{1000, false}, {1000, true}, {16, false}, {7, true}}) {
    const auto logits = prefill(chunk, together);
    const Difference d = difference(logits, golden_.logits_fp32);
    EXPECT_LT(d.max, kFp32Bar * deviation(golden_.logits_fp32)) << "chunks of " << chunk << ", together " << together;
  }
}

TEST_P(GoldenModels, DecodeMatchesInFp32) {
  open(DType::kF32);
  std::vector<int> requests;
  std::vector<std::vector<std::int32_t>> next = golden_.sequences;
  for (std::size_t i = 0; i < next.size(); ++i) requests.push_back(runner_->add_request());
  const auto vocab = static_cast<std::size_t>(golden_.vocab);
  for (std::int64_t step = 0; step < golden_.decode_steps; ++step) {
    // The first round mixes: half of the requests are prefilled while the other half already decodes one step ahead.
    std::vector<ModelHarness::Piece> pieces;
    for (std::size_t i = 0; i < next.size(); ++i) pieces.push_back({requests[i], next[i]});
    const auto logits = runner_->forward(pieces, ModelHarness::Logits::kLast);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::span<const float> expected(
          golden_.decode_logits.data() + (i * static_cast<std::size_t>(golden_.decode_steps) + step) * vocab, vocab);
      const Difference d = difference(std::span(*logits).subspan(i * vocab, vocab), expected);
      ASSERT_LT(d.max, kFp32Bar * deviation(golden_.logits_fp32)) << "sequence " << i << ", step " << step;
      next[i] = {golden_.decoded[i][static_cast<std::size_t>(step)]};
    }
  }
}

// With K and V kept in bf16, fp32 everywhere else, the error must stay below what transformers loses by computing in
// bf16.
TEST_P(GoldenModels, Bf16CacheLosesLessThanBf16Compute) {
  open(DType::kBF16);
  const auto logits = prefill(1000, true);
  const Difference ours = difference(logits, golden_.logits_fp32);
  const Difference theirs = difference(golden_.logits_bf16, golden_.logits_fp32);
  EXPECT_GT(ours.max, 0.0);
  EXPECT_LT(ours.rms, theirs.rms);
  EXPECT_LT(ours.max, theirs.max);
}

// As it runs by default: the cache in bf16, and activations rounded to bf16 for products of many rows.
TEST_P(GoldenModels, DefaultsLoseLessThanBf16Compute) {
  open(DType::kBF16, {});
  const Difference ours = difference(prefill(1000, true), golden_.logits_fp32);
  const Difference theirs = difference(golden_.logits_bf16, golden_.logits_fp32);
  EXPECT_LT(ours.rms, theirs.rms);
  EXPECT_LT(ours.max, theirs.max);
}

// In batch-invariant mode a token's logits are the same bits alone, in chunks and in company.
TEST_P(GoldenModels, BatchInvariantBits) {
  DeviceOptions options;
  options.batch_invariant = true;
  open(DType::kBF16, options);
  const auto alone = prefill(1000, false);
  for (const auto& [chunk, together] : {std::pair{1000, true}, {16, true}, {5, true}, {1, true}}) {
    ASSERT_EQ(prefill(chunk, together), alone) << "chunks of " << chunk;
  }
  for (const int asks : {1, 2, 5}) {
    runner_->set_asks_a_part(asks);
    const int before = runner_->parts();
    ASSERT_EQ(prefill(40, false), alone) << "left when it asked " << asks << " times";
    EXPECT_GT(runner_->parts() - before, 5);
  }
}

// A forward of more rows than are computed between two times that it asks, whatever runs in between, with bf16 products
// or in batch-invariant mode.
TEST_P(GoldenModels, LeftAndTakenUpAgainSameBits) {
  for (const bool invariant : {false, true}) {
    DeviceOptions options;
    options.batch_invariant = invariant;
    open(DType::kBF16, options);
    std::vector<std::int32_t> tokens(200);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>((i * 7919 + 13) % static_cast<std::size_t>(golden_.vocab));
    }
    std::vector<std::vector<float>> logits;
    for (const int asks : {0, 1, 2, 7}) {
      runner_->set_asks_a_part(asks);
      const ModelHarness::Piece piece{runner_->add_request(), tokens};
      const int before = runner_->parts();
      auto last = runner_->forward({&piece, 1}, ModelHarness::Logits::kLast);
      ASSERT_TRUE(last.ok()) << last.status().to_string();
      EXPECT_GE(runner_->parts() - before, asks == 0 ? 0 : 3);
      logits.push_back(std::move(*last));
      ASSERT_EQ(logits.front(), logits.back()) << "left when it asked " << asks << " times";
    }
  }
}

TEST_P(GoldenModels, SavedConfigurationMeansTheSame) {
  const fs::path folder = kGoldens / GetParam();
  const auto published = parse_model_config(*read_file(folder / "config.json", 1 << 20), "");
  const auto saved = parse_model_config(*read_file(folder / "config.saved.json", 1 << 20), "");
  ASSERT_TRUE(published.ok()) << published.status().to_string();
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_EQ(published->layer_window, saved->layer_window);
  EXPECT_EQ(published->head_dim, saved->head_dim);
  EXPECT_EQ(published->num_kv_heads, saved->num_kv_heads);
  EXPECT_EQ(published->max_position, saved->max_position);
  EXPECT_EQ(published->rms_norm_eps, saved->rms_norm_eps);
  EXPECT_EQ(published->tie_word_embeddings, saved->tie_word_embeddings);
  EXPECT_EQ(published->attention_bias, saved->attention_bias);
  EXPECT_EQ(published->output_bias, saved->output_bias);
  EXPECT_EQ(published->mlp_bias, saved->mlp_bias);
  EXPECT_EQ(published->attention_scale, saved->attention_scale);
  EXPECT_EQ(published->attention_softcap, saved->attention_softcap);
  EXPECT_EQ(published->final_softcap, saved->final_softcap);
  EXPECT_EQ(published->eos_tokens, saved->eos_tokens);
  EXPECT_EQ(published->activation, saved->activation);
  EXPECT_EQ(published->qk_norm, saved->qk_norm);
  EXPECT_TRUE(published->rope == saved->rope);
  EXPECT_TRUE(published->window_rope == saved->window_rope);
  EXPECT_EQ(published->short_context_divisors, saved->short_context_divisors);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModels, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fovea
