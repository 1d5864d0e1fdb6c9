// Logits of tiny random models of every family against transformers (tests/goldens/models, made by
// tests/goldens/make_goldens.py): whole prompts, chunks, decode, and batches that mix them, over a paged KV pool with
// pages in random order. FOVEA_TEST_GOLDENS names another folder: `make test-peers` makes models anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/file.h"
#include "engine/model/model.h"
#include "engine/model/model_test_util.h"
#include "engine/model/safetensors.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

fs::path goldens_folder() {
  const char* other = std::getenv("FOVEA_TEST_GOLDENS");
  return other != nullptr ? fs::path(other) : fs::path(FOVEA_SOURCE_DIR) / "tests/goldens/models";
}
const fs::path kGoldens = goldens_folder();

std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGoldens)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Golden {
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<std::vector<std::int32_t>> decoded;  // greedy tokens
  std::vector<float> logits_fp32, logits_bf16;     // [tokens, vocab]
  std::vector<float> decode_logits;                // [sequence, step, vocab]
  std::int64_t vocab = 0, decode_steps = 0;
};

template <typename T>
std::vector<T> copy_of(const TensorStore& store, const std::string& name) {
  const TensorView view = store.find(name).value();
  const T* data = static_cast<const T*>(view.data);
  return {data, data + view.num_elements()};
}

Golden load_golden(const fs::path& folder) {
  auto opened = TensorStore::open(folder / "golden.safetensors");
  EXPECT_TRUE(opened.ok()) << opened.status().to_string();
  const TensorStore store = std::move(*opened);
  Golden golden;
  const auto tokens = copy_of<std::int32_t>(store, "tokens");
  auto at = tokens.begin();
  for (const std::int32_t length : copy_of<std::int32_t>(store, "lengths")) {
    golden.sequences.emplace_back(at, at + length);
    at += length;
  }
  golden.vocab = store.find("logits_fp32").value().shape[1];
  golden.logits_fp32 = copy_of<float>(store, "logits_fp32");
  golden.logits_bf16 = copy_of<float>(store, "logits_bf16");
  golden.decode_logits = copy_of<float>(store, "decode_logits_fp32");
  golden.decode_steps = store.find("decode_tokens").value().shape[1];
  const auto decoded = copy_of<std::int32_t>(store, "decode_tokens");
  for (std::size_t i = 0; i < golden.sequences.size(); ++i) {
    golden.decoded.emplace_back(decoded.begin() + static_cast<std::ptrdiff_t>(i) * golden.decode_steps,
                                decoded.begin() + static_cast<std::ptrdiff_t>(i + 1) * golden.decode_steps);
  }
  return golden;
}

struct Difference {
  double max = 0.0, rms = 0.0;
};

Difference difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  Difference d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double gap = std::abs(double{a[i]} - b[i]);
    d.max = std::isnan(gap) ? INFINITY : std::max(d.max, gap);
    d.rms += gap * gap;
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(a.size()));
  return d;
}

double deviation(std::span<const float> values) {
  double sum = 0.0;
  for (const float v : values) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

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
  // Logits of every token, in the golden order. chunk: tokens of one sequence that a forward takes; together: whether
  // one forward holds chunks of all sequences.
  std::vector<float> prefill(int chunk, bool together) {
    std::vector<std::vector<float>> logits(golden_.sequences.size());
    std::vector<int> requests(golden_.sequences.size());
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i] = runner_->add_request();
    std::vector<std::size_t> done(golden_.sequences.size());
    for (bool more = true; more;) {
      more = false;
      std::vector<ModelHarness::Piece> pieces;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const auto& tokens = golden_.sequences[i];
        const std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(chunk), tokens.size() - done[i]);
        if (count == 0) continue;
        pieces.push_back({requests[i], std::span(tokens).subspan(done[i], count)});
        done[i] += count;
        more = true;
        if (!together) break;
      }
      if (pieces.empty()) break;
      const auto rows = runner_->forward(pieces);
      EXPECT_TRUE(rows.ok()) << rows.status().to_string();
      if (!rows.ok()) return {};
      std::size_t row = 0;
      for (const auto& piece : pieces) {
        auto& to = logits[static_cast<std::size_t>(piece.request - requests[0])];
        const std::size_t count = piece.tokens.size() * static_cast<std::size_t>(golden_.vocab);
        to.insert(to.end(), rows->begin() + static_cast<std::ptrdiff_t>(row),
                  rows->begin() + static_cast<std::ptrdiff_t>(row + count));
        row += count;
      }
    }
    std::vector<float> all;
    for (const auto& part : logits) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

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
