// The engine on a CUDA device without a GPU (cuda/testing/fake_driver.h, host_kernels.h): logits of every family, steps
// that graphs repeat, and what users see when a launch, an allocation or a copy fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "cuda/driver_api.h"
#include "fovea/engine_view.h"
#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

class CudaGoldens : public ::testing::TestWithParam<std::string> {};

// As good as transformers in bf16, which rounds activations between operators as this device does.
TEST_P(CudaGoldens, LogitsOfEveryFamily) {
  prepare_cuda(GetParam());
  const Golden golden = load_golden(kGoldens / GetParam());
  auto runner = ModelHarness::create(kGoldens / GetParam(), DType::kBF16, {}, {}, kCudaDevice);
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  const Difference ours = difference(golden_prefill(**runner, golden, 16, true), golden.logits_fp32);
  const Difference theirs = difference(golden.logits_bf16, golden.logits_fp32);
  EXPECT_LT(ours.rms, 1.25 * theirs.rms);
  EXPECT_LT(ours.max, 2.0 * theirs.max);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGoldens, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

// Of host and device, on one clock.
TEST_F(CudaEngine, ALogOfStepsHasBothLanes) {
  options_.step_log = 4;
  auto engine = create_engine(path_, std::nullopt, options_);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  std::promise<void> ended;
  ASSERT_TRUE((*engine)
                  ->submit(requests_[1],
                           [&](const GenerationEvent& event) {
                             if (event.finish != FinishReason::kNone) ended.set_value();
                           })
                  .ok());
  ended.get_future().wait();
  std::promise<std::vector<StepSpan>> asked;
  (*engine)->view([&](const EngineView& view) { asked.set_value(view.spans); });
  const std::vector<StepSpan> spans = asked.get_future().get();
  int host = 0, device = 0;
  for (const StepSpan& span : spans) {
    (span.device ? device : host) += 1;
    EXPECT_GE(span.end, span.begin);
    EXPECT_EQ(span.device, span.name == "step");
    EXPECT_EQ(span.tokens, span.device ? 1 : 0);
  }
  EXPECT_EQ(device, 4);
  EXPECT_GT(host, 12);
}

// Keys and queries are brought from the device's memory, of prompts and of steps of decode.
TEST_F(CudaEngine, KeysAreLearnedAsOnACpu) {
  requests_.resize(3);
  const auto learned = [&](const char* device) {
    EngineOptions options = options_;
    options.device = device;
    options.model = path_.string();
    options.load_format = "dummy";
    auto made = create_profiling_engine(options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    for (const GenerateRequest& request : requests_) {
      std::promise<void> ended;
      EXPECT_TRUE(made->engine
                      ->submit(request,
                               [&](const GenerationEvent& event) {
                                 if (event.finish != FinishReason::kNone) ended.set_value();
                               })
                      .ok());
      ended.get_future().wait();
    }
    auto codes = made->profiler->codes();
    EXPECT_TRUE(codes.ok()) << codes.status().message();
    return *std::move(codes);
  };
  const KeyCodes ours = learned(kCudaDevice), expected = learned("cpu");
  EXPECT_EQ(fake::state().calls["cuGraphLaunch"], 0);
  ASSERT_EQ(ours.codes.size(), expected.codes.size());
  for (std::size_t i = 0; i < ours.codes.size(); ++i) {
    const abi::KeyCode &a = ours.codes[i], &b = expected.codes[i];
    int common = 0;  // activations are rounded to bf16 on one of them, so weights that are alike may change places
    for (std::size_t c = 0; c < static_cast<std::size_t>(abi::kCodeChannels); ++c) {
      const std::uint8_t* const at = std::find(std::begin(b.channel), std::end(b.channel), a.channel[c]);
      if (at == std::end(b.channel)) continue;
      ++common;
      const auto there = static_cast<std::size_t>(at - b.channel);
      EXPECT_NEAR(a.mean[c], b.mean[there], 0.02f * b.step[there] / 0.335f);
      EXPECT_NEAR(a.step[c], b.step[there], 0.02f * b.step[there]);
    }
    EXPECT_GE(common, abi::kCodeChannels - 2);
  }
}

// One after another, so that every run has the same steps.
TEST_F(CudaEngine, GraphsRepeatStepsOfDecode) {
  const std::vector<Tokens> expected = tokens_of(answers(false));
  ASSERT_EQ(expected.size(), requests_.size());
  EXPECT_GT(fake::state().calls["cuGraphLaunch"], 40);
  EXPECT_LT(fake::state().calls["cuGraphInstantiateWithFlags"], 4);
  prepare_cuda("llama31");
  fake::state().failures["cuGraphInstantiateWithFlags"] = 2;  // without them: the same tokens
  EXPECT_EQ(tokens_of(answers(false)), expected);
  EXPECT_EQ(fake::state().calls["cuGraphLaunch"], 0);
}

// The third prompt of a length is captured, and that and later ones are replayed, where the step is small.
TEST_F(CudaEngine, GraphsRepeatSmallStepsWithPrompts) {
  options_.chunk_tokens = 300;
  options_.prefix_cache = false;
  for (const auto& [tokens, repeated] : {std::pair(40, true), {256, true}, {257, false}}) {
    SCOPED_TRACE(tokens);
    prepare_cuda("llama31");
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      GenerateRequest& request = requests_[i];
      request.prompt.clear();
      for (int t = 0; t < tokens; ++t) request.prompt.push_back((t * (3 + static_cast<int>(i)) + 1) % 128);
      request.sampling.max_tokens = 1;
    }
    EngineStats stats;
    const std::vector<Tokens> ours = tokens_of(run(path_, {}, options_, requests_, false, stats));
    EXPECT_EQ(stats.device_graphs, repeated ? 1 : 0);
    EXPECT_EQ(fake::state().calls["cuGraphLaunch"], repeated ? 4 : 0);
    fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
    EXPECT_EQ(tokens_of(answers(false)), ours);
  }
}

// Counted in graphs and in bytes, of which there is a bound.
TEST_F(CudaEngine, GraphsSayWhatTheyTake) {
  fake::state().graph_bytes = 4096;
  EngineStats stats;
  (void)run(path_, {}, options_, requests_, false, stats);
  EXPECT_EQ(stats.device_graphs, fake::state().calls["cuGraphInstantiateWithFlags"]);
  EXPECT_GT(stats.device_graphs, 0);
  EXPECT_EQ(stats.device_graph_bytes, 4096 * stats.device_graphs);
}

// The device's choice of a token is that of the host, which looks where somebody asks for more.
TEST_F(CudaEngine, TokensOfTheDeviceAreThoseOfTheHost) {
  const std::vector<Tokens> by_device = tokens_of(answers(false));
  for (GenerateRequest& request : requests_) request.sampling.logprobs = 0;
  EXPECT_EQ(tokens_of(answers(false)), by_device);
}

TEST_F(CudaEngine, TokensThatTheDeviceDrawsAreThoseOfTheHost) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    SamplingParams& sampling = requests_[i].sampling;
    sampling.temperature = 0.5f + 0.25f * static_cast<float>(i);
    sampling.top_p = i % 2 == 0 ? 1.0f : 0.8f;
    sampling.min_p = i % 3 == 0 ? 0.05f : 0.0f;
    sampling.has_seed = true;
    sampling.seed = i;
  }
  requests_[2].n = 3;
  const std::vector<Tokens> by_device = tokens_of(answers(false));
  EXPECT_GT(fake::state().calls["cuGraphLaunch"], 40);
  for (GenerateRequest& request : requests_) request.sampling.logprobs = 0;
  EXPECT_EQ(tokens_of(answers(false)), by_device);
}

TEST_F(CudaEngine, SampledAndGreedyRequestsShareSteps) {
  requests_[1].sampling.temperature = 1.0f;
  requests_[4].sampling.temperature = 0.7f;
  requests_[4].sampling.logprobs = 2;
  requests_[2].sampling.repetition_penalty = 1.5f;
  requests_[3].n = 2;
  requests_[0].n = 3;
  for (const Answer& answer : answers()) EXPECT_EQ(answer.tokens.size(), 12u);
  EXPECT_GT(fake::state().calls["cuGraphLaunch"], 0);
}

// The bits of a request alone, and of the same among others that share its prefix and its steps.
TEST_F(CudaEngine, BatchInvariantAnswersAreTheSameInACrowd) {
  options_.batch_invariant = true;
  for (GenerateRequest& request : requests_) request.sampling.logprobs = 0;
  EngineOptions alone = options_;
  alone.prefix_cache = false;
  EngineStats stats;
  const std::vector<Answer> expected = run(path_, {}, alone, requests_, false, stats);
  EXPECT_EQ(answers(), expected);
  options_.chunk_tokens = 32;
  EXPECT_EQ(answers(), expected);
}

// Pages are chosen on the device, after the plan and inside of graphs.
class CudaSelection : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    options_ = selecting_options("fovea");
    options_.device = kCudaDevice;
    options_.batch_invariant = false;
    options_.num_threads = 1;
    requests_ = selecting_requests();
    for (GenerateRequest& request : requests_) request.sampling.logprobs = -1;  // so that steps are repeated
    const auto config = load_model_config(kGoldens / "llama31");
    ASSERT_TRUE(config.ok());
    PhiloxRng rng(9);
    codes_.num_kv_heads = config->num_kv_heads;
    codes_.codes.resize(static_cast<std::size_t>(config->num_layers * config->num_kv_heads));
    for (abi::KeyCode& code : codes_.codes) {
      for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
        code.channel[i] = static_cast<std::uint8_t>(i % config->head_dim);
        code.mean[i] = 0.1f * rng.next_normal();
        code.step[i] = 0.05f + 0.05f * std::abs(rng.next_normal());
      }
    }
    num_layers_ = config->num_layers;
    for (std::int32_t layer = 0; layer < num_layers_; ++layer) half_.push_back({layer, 1});
  }
  std::vector<Tokens> tokens(bool together, EngineStats& stats, const std::optional<HeadProfile>& streaming = {}) {
    return tokens_of(run(path_, streaming, options_, requests_, together, stats, {}, nullptr, &codes_));
  }

  KeyCodes codes_;
  std::int32_t num_layers_ = 0;
  std::vector<ModelHead> half_;
};

TEST_F(CudaSelection, PagesAreThoseOfTheRuleWhateverRepeatsTheSteps) {
  for (const bool streaming : {false, true}) {
    for (const std::int32_t interval : {1, 4}) {
      SCOPED_TRACE(::testing::Message() << "every " << interval << " steps, streaming " << streaming);
      prepare_cuda("llama31");
      options_.sparse_interval = interval;
      const auto heads = streaming ? std::optional(profile(64, 0, half_)) : std::nullopt;
      EngineStats stats;
      const std::vector<Tokens> expected = tokens(false, stats, heads);
      EXPECT_GT(fake::state().calls["cuGraphLaunch"], 40);
      // As many queries as have more than the budget before them, each with as many pages as it.
      std::uint64_t queries = 0, kept = 0;
      for (const GenerateRequest& request : requests_) {
        const auto prompt = static_cast<std::int32_t>(request.prompt.size());
        for (std::int32_t seen = prompt - request.sparse_prompt_tokens + 1; seen < prompt + 24; ++seen) {
          if (num_units(seen, 16) <= 16) continue;
          ++queries;
          kept += static_cast<std::uint64_t>(num_units(seen, 16));
        }
      }
      const std::uint64_t all = stats.sparse_heads;
      EXPECT_EQ(all, static_cast<std::uint64_t>(num_layers_) *
                         (static_cast<std::uint64_t>(codes_.num_kv_heads) - (streaming ? 1 : 0)));
      EXPECT_EQ(stats.sparse_queries, queries * all);
      EXPECT_EQ(stats.sparse_pages_read, queries * 16 * all);
      EXPECT_EQ(stats.sparse_pages_kept, kept * all);
      EXPECT_EQ(stats.sparse_refreshes + stats.sparse_rescorings, queries * all);
      EXPECT_EQ(stats.sparse_rescorings > 0, interval > 1);
      EXPECT_EQ(stats.sparse_reuses, 0u);
      // Kernel by kernel: the same.
      prepare_cuda("llama31");
      fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
      EXPECT_EQ(tokens(false, stats, heads), expected);
      EXPECT_EQ(fake::state().calls["cuGraphLaunch"], 0);
      // A budget that holds everything is dense attention.
      prepare_cuda("llama31");
      options_.kv_budget = "2048";
      const std::vector<Tokens> whole = tokens(false, stats, heads);
      EXPECT_EQ(stats.sparse_queries, 0u);
      options_.sparse = "off";
      options_.kv_budget = "256";
      for (GenerateRequest& request : requests_) request.sparse_prompt_tokens = 0;
      EXPECT_EQ(tokens(false, stats, heads), whole);
      options_.sparse = "fovea";
      requests_ = selecting_requests();
      for (GenerateRequest& request : requests_) request.sampling.logprobs = -1;
    }
  }
}

// The same chunk of a prompt, of which more tokens select than in the chunk that was captured.
TEST_F(CudaSelection, ChunksInWhichMoreTokensSelectAreOtherSteps) {
  options_.chunk_tokens = 64;
  options_.prefix_cache = false;
  requests_.resize(8, requests_[0]);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    GenerateRequest& request = requests_[i];
    request.prompt.clear();
    for (int t = 0; t < 360; ++t) request.prompt.push_back((t * (3 + 2 * static_cast<int>(i)) + t / 7) % 128);
    request.sparse_prompt_tokens = i < 4 ? 4 : 40;
    request.sampling.max_tokens = 8;
  }
  EngineStats stats;
  const std::vector<Tokens> ours = tokens(false, stats);
  EXPECT_GT(fake::state().calls["cuGraphLaunch"], 30);
  prepare_cuda("llama31");
  fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
  EXPECT_EQ(tokens(false, stats), ours);
}

// Each reads in a step of eight what it reads alone.
TEST_F(CudaSelection, EightAtOnceReadAsManyPagesAsAlone) {
  ASSERT_GE(requests_.size(), 8u);
  options_.max_running = 8;
  EngineStats alone, together;
  for (const Tokens& answer : tokens(false, alone)) EXPECT_EQ(answer.size(), 24u);
  for (const Tokens& answer : tokens(true, together)) EXPECT_EQ(answer.size(), 24u);
  EXPECT_GT(alone.sparse_queries, 0u);
  EXPECT_EQ(together.sparse_queries, alone.sparse_queries);
  EXPECT_EQ(together.sparse_pages_read, alone.sparse_pages_read);
  EXPECT_EQ(together.sparse_pages_kept, alone.sparse_pages_kept);
  EXPECT_LT(together.steps, alone.steps);
}

// Slots change hands, choices share pages and copy them, requests are retracted: what a row remembers is its own (the
// kernels' twin ends the process where a scan would be another's).
TEST_F(CudaSelection, WhatIsRememberedIsTheRequestsOwn) {
  options_.sparse_interval = 4;
  options_.max_running = 5;
  options_.kv_cache_bytes = 3 << 20;
  requests_[2].n = 3;
  EngineStats stats;
  requests_[6].sparse = "off";
  requests_[6].sparse_prompt_tokens = 0;
  requests_[7].sampling.logprobs = 0;
  for (const Tokens& answer : tokens(true, stats)) EXPECT_EQ(answer.size(), 24u);
  EXPECT_GT(stats.sparse_rescorings, 0u);
  EXPECT_GT(stats.sparse_refreshes, 0u);
}

TEST_F(CudaSelection, WhatTheDeviceCannotDoIsSaid) {
  const auto refusal = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = options_;
    change(options);
    return create_engine(path_, {}, options, nullptr, &codes_).status().message();
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.sparse = "quest"; }), HasSubstr("learned key codes alone"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.page_tokens = 32; }), HasSubstr("page_tokens to be 16"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.sparse_prefill = "256"; }), HasSubstr("prompts read all pages"));
  EXPECT_THAT(refusal([](EngineOptions& o) {
                o.sparse_interval = 4;
                o.sparse_candidates = 0;
              }),
              HasSubstr("sparse_candidates is 0"));
  auto engine = create_engine(path_, {}, options_, nullptr, &codes_);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  GenerateRequest request = requests_[2];
  request.kv_budget = "512";
  EXPECT_THAT((*engine)->submit(request, [](const GenerationEvent&) {}).status().message(), HasSubstr("room for 256"));
  request = requests_[2];
  request.sparse = "random";
  EXPECT_THAT((*engine)->submit(request, [](const GenerationEvent&) {}).status().message(), HasSubstr("fovea"));
}

// What fails while requests run ends them with the reason, and later ones run.
TEST_F(CudaEngine, FaultsEndRequestsAndNothingElse) {
  for (const char* function :
       {"cuLaunchKernelEx", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventSynchronize", "cublasLtMatmul"}) {
    SCOPED_TRACE(function);
    prepare_cuda("llama31");
    EngineOptions options = options_;
    options.chunk_tokens = 128;  // so that cuBLASLt has rows to multiply
    auto engine = create_engine(path_, {}, options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const auto finish_of = [&](std::string& message) {
      std::mutex mutex;
      std::condition_variable changed;
      FinishReason finish = FinishReason::kNone;
      const auto id = (*engine)->submit(requests_[3], [&](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        if (event.finish == FinishReason::kNone) return;
        finish = event.finish;
        message = event.error.message();
        changed.notify_all();
      });
      EXPECT_TRUE(id.ok());
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return finish != FinishReason::kNone; }));
      return finish;
    };
    std::string message;
    fake::state().failures[function] = 13;
    EXPECT_EQ(finish_of(message), FinishReason::kError);
    EXPECT_THAT(message, HasSubstr(std::string(function).substr(0, 8)));
    fake::state().failures.clear();
    EXPECT_EQ(finish_of(message), FinishReason::kLength) << message;
    (*engine)->flush_cache();
    EXPECT_TRUE((*engine)->check_integrity().ok());
    EXPECT_EQ((*engine)->stats().kv_bytes_in_use, 0);
  }
}

TEST_F(CudaEngine, WhatCannotBeServedIsSaidBeforeServing) {
  const auto refusal = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = options_;
    change(options);
    return create_engine(path_, {}, options).status();
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.device = "cuda:3"; }).message(), HasSubstr("there is no cuda:3"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.kv_dtype = DType::kF32; }).message(), HasSubstr("kv_dtype f32"));
  const Status pages = refusal([](EngineOptions& o) { o.kv_cache_bytes = std::int64_t{1} << 40; });
  EXPECT_EQ(pages.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(pages.message(), HasSubstr("cuda:0"));
  fake::state().memory_bytes = 1 << 12;
  const Status weights = refusal([](EngineOptions&) {});
  EXPECT_EQ(weights.code(), StatusCode::kResourceExhausted) << weights.to_string();
}

}  // namespace
}  // namespace fovea
