// Draft trees on a CUDA device without a GPU (cuda/testing/fake_driver.h, host_kernels.h): bit masks in its plans,
// tokens that move to their places in pools of every format, steps that graphs repeat, tokens that the device draws.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/cache/kv_pool.h"
#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;

// Steps of equal length: draft tokens cost next to nothing, and trees are as large as they may be.
std::function<double()> even_clock() {
  return [now = 0.0]() mutable { return now += 1e-3; };
}

struct Kind {
  const char* name;
  const char* golden;
  DType kv = DType::kBF16;
  bool rotated = false;
  std::int32_t local = 0;  // tokens that streaming heads see; 0: there are none
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class CudaTrees : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    prepare();
    path_ = temp_config(std::string("cuda_trees_") + GetParam().name);
    ASSERT_TRUE(write_file_atomic(path_, config_of(GetParam().golden, GetParam().local > 0 ? 4 : 0)).ok());
    if (GetParam().local > 0) streaming_ = profile(GetParam().local, 0, {{0, 1}, {0, 3}, {1, 0}, {1, 1}});
    options_.device = kCudaDevice;
    options_.num_threads = 1;
    options_.kv_cache_bytes = 16 << 20;
    options_.kv_dtype = GetParam().kv;
    options_.kv_rotated = GetParam().rotated;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void prepare() {
    prepare_cuda(GetParam().golden);
    moves_ = 0;
    fake::state().kernels["fovea_move_tokens"] = [this](void** p) {
      return [this, args = *static_cast<const abi::MoveTokensArgs*>(p[0])] {
        moves_ += static_cast<int>(args.num_moves);
        cpu::move_tokens(args);
      };
    };
  }

  // Answers of few words, so that they come back to the same ones and go on differently.
  static std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> requests;
    PhiloxRng rng(17);
    for (int i = 0; i < 5; ++i) {
      GenerateRequest request;
      for (int k = 0; k < 40 + 30 * i; ++k) request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(3)));
      request.sampling.max_tokens = 100;
      request.sampling.ignore_eos = true;
      request.sampling.has_seed = true;
      request.sampling.seed = static_cast<std::uint64_t>(40 + i);
      request.sampling.temperature = 2.0f;
      for (std::int32_t token = 0; token < 3; ++token) request.sampling.logit_bias.push_back({token, 100.0f});
      request.sampling.logprobs = 0;
      if (i == 3) request.n = 2;
      requests.push_back(request);
    }
    return requests;
  }
  std::vector<Answer> answers(const std::vector<GenerateRequest>& requests, EngineStats& stats) {
    return run(path_, streaming_, options_, requests, false, stats, {}, nullptr, nullptr, even_clock());
  }

  std::filesystem::path path_;
  EngineOptions options_;
  std::optional<HeadProfile> streaming_;
  int moves_ = 0;
};

// The device's activations are bf16, and what is before a tree is cut elsewhere: the last bits differ,
// log-probabilities by up to 0.03, and now and then a token that was drawn at the border to another. Where
// accepted draft tokens stay at their rows it is 0.17 to 0.45.
TEST_P(CudaTrees, GiveTheTokensOfOneAStep) {
  EngineStats plain;
  const std::vector<Answer> expected = answers(requests(), plain);
  ASSERT_EQ(expected.size(), 6u);
  prepare();
  fake::state().late = true;
  options_.speculate = "ngram";
  EngineStats drafting;
  const std::vector<Answer> actual = answers(requests(), drafting);
  ASSERT_EQ(actual.size(), expected.size());
  std::size_t same = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].tokens.size(), 100u);
    for (std::size_t k = 0; k < 100 && actual[i].tokens[k] == expected[i].tokens[k]; ++k, ++same) {
      EXPECT_NEAR(actual[i].logprobs[k], expected[i].logprobs[k], 0.08f) << "choice " << i << ", token " << k;
    }
  }
  EXPECT_GE(same, 500u);
  EXPECT_GT(drafting.accepted_branches, 40u);
  EXPECT_GT(moves_, 80);
  EXPECT_LT(drafting.steps, plain.steps * 7 / 10);
  // Verify steps are repeated as others are.
  EXPECT_GT(fake::state().calls["cuGraphLaunch"], static_cast<int>(drafting.steps) * 8 / 10);
  EXPECT_LT(fake::state().calls["cuGraphInstantiateWithFlags"], 24);
}

using CudaTreeDraws = CudaTrees;

// A row draws by the number of tokens before it, not of rows.
TEST_P(CudaTreeDraws, TokensThatTheDeviceDrawsAreThoseOfTheHost) {
  std::vector<GenerateRequest> all = requests();
  for (GenerateRequest& request : all) {
    request.sampling.logit_bias.clear();
    request.sampling.temperature = 1.0f;
    request.sampling.top_p = 0.1f;
  }
  options_.speculate = "ngram";
  EngineStats stats;
  const std::vector<Tokens> by_host = tokens_of(answers(all, stats));
  EXPECT_GT(stats.accepted_branches, 4u);
  for (GenerateRequest& request : all) request.sampling.logprobs = -1;
  EXPECT_EQ(tokens_of(answers(all, stats)), by_host);
}

// A prompt that goes on behind an answer finds what trees left in the cache, and is answered as if it did not.
TEST_P(CudaTrees, AnswersAreCachedAsIfComputed) {
  EngineOptions cold = options_;
  cold.prefix_cache = false;
  options_.speculate = "ngram";
  auto engine = create_engine(path_, streaming_, options_, nullptr, nullptr, even_clock());
  auto other = create_engine(path_, streaming_, cold);
  ASSERT_TRUE(engine.ok() && other.ok());
  for (GenerateRequest request : requests()) {
    request.n = 1;
    // The last token is not computed; those before it fill pages, or a window would have given up what is needed.
    request.sampling.max_tokens = 128 + 1 - static_cast<std::int32_t>(request.prompt.size() % 16);
    const Tokens answer = ask(**engine, request).tokens;
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    request.prompt.push_back(7);
    request.sampling.max_tokens = 4;
    const Answer warm = ask(**engine, request);
    const Answer expected = ask(**other, request);
    EXPECT_EQ(warm.cached, static_cast<std::int32_t>(request.prompt.size()) - 2);
    ASSERT_EQ(warm.logprobs.size(), expected.logprobs.size());
    EXPECT_NEAR(warm.logprobs[0], expected.logprobs[0], 0.08f);
  }
  EXPECT_GT((*engine)->stats().accepted_branches, 40u);
}

// Arrivals, choices that share pages, cancelled requests, and pages that run out.
TEST_P(CudaTrees, CrowdsLeaveNothingBehind) {
  options_.speculate = "ngram";
  options_.max_running = 4;
  options_.max_context = 400;
  options_.kv_cache_bytes = GetParam().local > 0 || GetParam().golden == std::string("gemma2") ? 3 << 18 : 1 << 18;
  std::vector<GenerateRequest> all = requests();
  const std::vector<GenerateRequest> more = all;
  all.insert(all.end(), more.begin(), more.end());
  EngineStats stats;
  const std::vector<Answer> answers =
      run(path_, streaming_, options_, all, true, stats, {0, 7, 0, 0, 30, 1}, nullptr, nullptr, even_clock());
  ASSERT_EQ(answers.size(), 12u);
  for (const Answer& answer : answers) {
    if (answer.finish != FinishReason::kCancelled) {
      EXPECT_EQ(answer.tokens.size(), 100u);
    }
  }
  EXPECT_GT(stats.accepted_tokens, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTrees,
                         ::testing::Values(Kind{"bf16", "llama31"}, Kind{"fp8", "llama31", DType::kF8E4M3},
                                           Kind{"int8", "llama31", DType::kI8},
                                           Kind{"int4_rotated", "llama31", DType::kI4, true},
                                           Kind{"streaming", "llama31", DType::kBF16, false, 60},
                                           Kind{"streaming_int8", "llama31", DType::kI8, false, 60},
                                           Kind{"windows", "gemma2"}),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Models, CudaTreeDraws,
                         ::testing::Values(Kind{"bf16", "llama31"}, Kind{"int8", "llama31", DType::kI8}),
                         [](const auto& info) { return std::string(info.param.name); });

// Pages of two groups, written, moved and read as they lie: [head, token, dim] of K and of V, then their scales.
TEST(KvPoolMoves, EveryLayerOfEveryGroupAndNothingElse) {
  prepare_cuda("llama31");
  for (const char* name : {"cpu", kCudaDevice}) {
    for (const KvFormat format :
         {KvFormat{DType::kBF16}, KvFormat{DType::kF8E4M3}, KvFormat{DType::kI8}, KvFormat{DType::kI4, true}}) {
      SCOPED_TRACE(::testing::Message() << name << " " << dtype_name(format.dtype));
      const auto device = create_device(name, {});
      ASSERT_TRUE(device.ok()) << device.status().to_string();
      std::vector<KvGroupSpec> groups(2);
      groups[0].layers = {0, 1, 2};
      groups[0].num_kv_heads = 2;
      groups[0].heads = {{0, 1}, {1}, {0, 1}};
      groups[1].layers = {1};
      groups[1].num_kv_heads = 2;
      groups[1].heads = {{0}};
      groups[1].window_tokens = 64;
      for (KvGroupSpec& group : groups) group.head_dim = 64;
      const std::vector<AttentionGroupSpec> attention = {{{0, 2}, {{0, 2, 0}}}, {{1}, {{0, 1, 1}, {1, 2, 0}}}};
      KvPoolOptions options;
      options.format = format;
      options.bytes = 1 << 20;
      const auto pool = KvPool::create(**device, groups, attention, options);
      ASSERT_TRUE(pool.ok()) << pool.status().to_string();
      // A move of the last page's first token, two whose places are each other's, and one within a page.
      constexpr std::int32_t kPages = 4, kPage = 16;
      const std::vector<abi::TokenMove> moves[2] = {{{48, 17}, {19, 18}, {20, 19}, {5, 4}},
                                                    {{16, 31}, {2, 1}, {3, 2}, {60, 47}}};
      std::mt19937 random(3);
      std::vector<std::vector<std::byte>> expected[2];
      for (std::size_t g = 0; g < 2; ++g) {
        const auto bytes = static_cast<std::size_t>((*pool)->page_bytes(g));
        const auto memory = std::move(*(*device)->allocate_host(bytes));
        for (std::int32_t page = 0; page < kPages; ++page) {
          std::vector<std::byte>& content = expected[g].emplace_back(bytes);
          for (std::byte& byte : content) byte = static_cast<std::byte>(random());
          std::memcpy(memory.get(), content.data(), bytes);
          ASSERT_TRUE((*pool)->load_page(g, page, static_cast<const std::byte*>(memory.get())).ok());
          ASSERT_TRUE((*device)->wait().ok());
        }
        const KvFormat of_group = KvPool::format_of(groups[g], format);
        const auto row = static_cast<std::size_t>(64 * dtype_bits(of_group.dtype) / 8);
        for (const abi::TokenMove& move : moves[g]) {
          std::size_t piece = 0;  // of a page: K or V of a head, or their scales
          const auto copy = [&](std::size_t token_bytes) {
            std::memcpy(
                &expected[g][static_cast<std::size_t>(move.to / kPage)][piece + move.to % kPage * token_bytes],
                &expected[g][static_cast<std::size_t>(move.from / kPage)][piece + move.from % kPage * token_bytes],
                token_bytes);
            piece += kPage * token_bytes;
          };
          for (std::size_t i = 0; i < groups[g].layers.size(); ++i) {
            const int rows = 2 * groups[g].heads_of(i);
            for (int k = 0; k < rows; ++k) copy(row);
            for (int k = 0; of_group.quantized() && k < rows; ++k) copy(sizeof(abi::KvScale));
          }
          ASSERT_EQ(piece, bytes);
        }
      }
      for (std::size_t m = 0; m < moves[0].size(); ++m) {
        const abi::TokenMove by_group[] = {moves[0][m], moves[1][m]};
        (*pool)->move_token(by_group);
      }
      const int launches = fake::state().calls["cuLaunchKernelEx"];
      if ((*device)->place().kind == DeviceKind::kCuda) {  // what fails is done later
        fake::state().failures["cuLaunchKernelEx"] = 13;
        EXPECT_FALSE((*pool)->move_tokens().ok());
        EXPECT_FALSE((*pool)->copy_page(0, 1, 2).ok());
        fake::state().failures.clear();
      }
      for (std::size_t g = 0; g < 2; ++g) {
        const auto bytes = static_cast<std::size_t>((*pool)->page_bytes(g));
        const auto memory = std::move(*(*device)->allocate_host(bytes));
        for (std::int32_t page = 0; page < kPages; ++page) {
          ASSERT_TRUE((*pool)->save_page(g, page, static_cast<std::byte*>(memory.get())).ok());
          ASSERT_TRUE((*device)->wait().ok());
          EXPECT_EQ(std::memcmp(memory.get(), expected[g][static_cast<std::size_t>(page)].data(), bytes), 0)
              << "group " << g << ", page " << page;
        }
      }
      if ((*device)->place().kind == DeviceKind::kCuda) {
        EXPECT_EQ(fake::state().calls["cuLaunchKernelEx"], launches + 3) << "one launch, and two that failed";
      }
    }
  }
}

}  // namespace
}  // namespace fovea
