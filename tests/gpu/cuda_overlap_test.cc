// Steps that are launched before the tokens of the ones before are read, on a CUDA device without a GPU, whose streams
// do what they are given at once or as late as they may: answers are those of one step after the other, whatever ends
// requests, and every page comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/embedded_model.h"
#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

struct Ask {
  GenerateRequest request;
  std::size_t after = 0;      // tokens that came out of the engine before it is submitted, or until nothing runs
  std::size_t cancel_at = 0;  // tokens of its first choice behind which it is cancelled; 0: never
};

class CudaOverlap : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    options_.batch_invariant = true;  // so that neighbours change no bit
    options_.itl_target_ms = 0.0f;
  }

  std::vector<std::vector<Answer>> storm(const std::vector<Ask>& asks, bool overlap, bool late,
                                         const std::optional<HeadProfile>& streaming = {}) {
    fake::state().late = late;
    options_.overlap_steps = overlap;
    auto created = create_engine(path_, streaming, options_);
    EXPECT_TRUE(created.ok()) << created.status().to_string();
    std::vector<std::vector<Answer>> answers(asks.size());
    if (!created.ok()) return answers;
    EngineCore& engine = **created;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<RequestId> ids(asks.size());
    std::size_t tokens = 0, open = 0;
    for (std::size_t i = 0; i < asks.size(); ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return tokens >= asks[i].after || open == 0; });
      answers[i].resize(static_cast<std::size_t>(asks[i].request.n));
      open += answers[i].size();
      const auto id = engine.submit(asks[i].request, [&, i](const GenerationEvent& event) {
        const std::lock_guard inner(mutex);
        Answer& answer = answers[i][static_cast<std::size_t>(event.choice)];
        EXPECT_EQ(answer.finish, FinishReason::kNone) << "an event behind the last";
        answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
        for (const TokenLogprob& logprob : event.logprobs) answer.logprobs.push_back(logprob.logprob);
        answer.finish = event.finish;
        EXPECT_NE(event.finish, FinishReason::kError) << event.error.message();
        tokens += event.tokens.size();
        if (event.finish != FinishReason::kNone) {
          --open;
          EXPECT_EQ(event.completion_tokens, static_cast<std::int32_t>(answer.tokens.size() + (event.stop_token >= 0)));
        } else if (event.choice == 0 && answer.tokens.size() == asks[i].cancel_at) {
          engine.cancel(ids[i]);
        }
        changed.notify_all();
      });
      EXPECT_TRUE(id.ok()) << id.status().to_string();
      if (id.ok()) ids[i] = *id;
    }
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return open == 0; }));
    lock.unlock();
    EXPECT_TRUE(engine.check_integrity().ok()) << engine.check_integrity().to_string();
    engine.flush_cache();
    EXPECT_TRUE(engine.check_integrity().ok());
    stats_ = engine.stats();
    EXPECT_EQ(stats_.kv_bytes_in_use, 0);
    EXPECT_EQ(stats_.pages_free, stats_.pages_total);
    EXPECT_EQ(stats_.steps_ahead > 0, overlap);
    return answers;
  }

  // The model of a golden, or "streaming": llama31 with heads that stream, which are returned.
  std::optional<HeadProfile> prepare_family(const std::string& name) {
    const bool streaming = name == "streaming";
    const std::string golden = streaming ? "llama31" : name;
    prepare_cuda(golden);
    EXPECT_TRUE(write_file_atomic(path_, config_of(golden)).ok());
    return streaming ? std::optional(profile(32, 0, {{0, 1}, {1, 0}})) : std::nullopt;
  }

  // The answers alone, those with steps that overlap, and these as late as the device may be.
  void expect_the_same(const std::vector<Ask>& asks, const std::optional<HeadProfile>& streaming = {}) {
    const auto expected = storm(asks, false, false, streaming);
    for (const bool late : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "late " << late);
      const auto answers = storm(asks, true, late, streaming);
      for (std::size_t i = 0; i < asks.size(); ++i) {
        for (std::size_t c = 0; c < answers[i].size(); ++c) {
          const Answer &a = answers[i][c], &e = expected[i][c];
          if (asks[i].cancel_at == 0) {
            EXPECT_EQ(a, e) << i << ", choice " << c;
            EXPECT_EQ(a.finish, e.finish) << i << ", choice " << c;
            continue;
          }
          // Others of its choices may be anywhere when the first is cancelled.
          const std::size_t both = std::min(a.tokens.size(), e.tokens.size());
          EXPECT_TRUE(
              std::equal(a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(both), e.tokens.begin()))
              << i << ", choice " << c;
          EXPECT_TRUE(c > 0 || a.tokens.size() == e.tokens.size()) << i;
        }
      }
    }
  }

  // Prompts with common beginnings, greedy and drawn, which end by length, by a token, or are cancelled.
  std::vector<Ask> asks(std::uint64_t seed, int count) {
    PhiloxRng rng(seed);
    const auto below = [&](int most) { return static_cast<int>(rng.next_below(static_cast<std::uint64_t>(most))); };
    std::vector<Ask> all;
    for (int i = 0; i < count; ++i) {
      Ask& ask = all.emplace_back();
      GenerateRequest& request = ask.request;
      const int common = 16 * below(5), own = 1 + below(60);
      for (int t = 0; t < common + own; ++t) request.prompt.push_back(t < common ? t : below(128));
      SamplingParams& sampling = request.sampling;
      sampling.max_tokens = 1 + below(40);
      sampling.ignore_eos = true;
      sampling.temperature = below(2) == 0 ? 0.0f : 0.8f;
      sampling.top_p = below(2) == 0 ? 1.0f : 0.9f;
      sampling.has_seed = true;
      sampling.seed = seed + static_cast<std::uint64_t>(i);
      for (int t = below(8); t > 0; --t) sampling.stop_token_ids.push_back(below(128));
      request.priority = below(3);
      request.n = below(5) == 0 ? 3 : 1;
      ask.after = static_cast<std::size_t>(i * below(12));
      ask.cancel_at = below(6) == 0 ? static_cast<std::size_t>(1 + below(8)) : 0;
    }
    return all;
  }

  EngineStats stats_;
};

TEST_F(CudaOverlap, StormsOfArrivalsAndCancels) {
  options_.max_running = 6;
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    expect_the_same(asks(seed, 40));
  }
}

// Prompts of several chunks: those behind the first are launched before it is over, as is what is admitted meanwhile.
TEST_F(CudaOverlap, StormsOfPromptsInChunks) {
  for (const char* const golden : {"llama31", "mistral"}) {
    SCOPED_TRACE(golden);
    prepare_family(golden);
    options_.max_running = 6;
    options_.chunk_tokens = 24;
    expect_the_same(asks(8, 30));
  }
}

// Steps of as many tokens and logits, of which other sequences have other parts: graphs of prompts beside decodes give
// what kernels give that are launched one by one.
TEST_F(CudaOverlap, StormsOfPromptsThatGraphsRepeat) {
  for (const char* const golden : {"llama31", "mistral", "streaming"}) {
    SCOPED_TRACE(golden);
    const auto half = prepare_family(golden);
    options_.max_running = 6;
    options_.chunk_tokens = 24;
    std::vector<Ask> all = asks(9, 40);
    for (Ask& ask : all) ask.cancel_at = 0;
    // Steps that were computed and not launched kernel by kernel. Of more rows than decode, and thus than logits.
    auto repeated = std::make_shared<int>(0);
    fake::state().kernels["fovea_embed"] = [repeated, embed = fake::state().kernels["fovea_embed"]](void** p) {
      const int step = static_cast<const abi::EmbedArgs*>(p[0])->rows > 6 ? 1 : 0;
      *repeated -= step;
      return [repeated, step, embed = embed(p)] {
        embed();
        *repeated += step;
      };
    };
    fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
    const auto expected = storm(all, false, false, half);
    EXPECT_LE(*repeated, 0);  // what was captured did not run
    fake::state().failures.clear();
    for (const bool late : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "late " << late);
      *repeated = 0;
      const auto answers = storm(all, true, late, half);
      for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(answers[i], expected[i]) << i;
      EXPECT_GT(*repeated, 20);
    }
  }
}

TEST_F(CudaOverlap, ChunksOfOnePromptOverlap) {
  options_.chunk_tokens = 24;
  std::vector<Ask> one(1);
  for (int t = 0; t < 200; ++t) one[0].request.prompt.push_back(t % 128);
  one[0].request.sampling.max_tokens = 1;
  one[0].request.sampling.temperature = 0.0f;
  expect_the_same(one);
  EXPECT_GE(stats_.steps_ahead, 200u / 24 - 1);
}

// With too few pages for those that run: the last are retracted, and the prefix cache gives up what it holds.
TEST_F(CudaOverlap, StormsOutOfPages) {
  options_.max_running = 12;
  options_.max_context = 160;
  options_.kv_cache_bytes = 128 << 10;
  std::vector<Ask> all = asks(4, 40);
  for (Ask& ask : all) ask.request.sampling.max_tokens += 20;
  expect_the_same(all);
  EXPECT_GT(stats_.retractions, 0u);
}

// Pages of every format come back too, whatever retracts, forks and ends requests.
TEST_F(CudaOverlap, StormsOverEveryKvFormat) {
  options_.max_running = 12;
  options_.max_context = 160;
  std::vector<Ask> all = asks(7, 24);
  for (Ask& ask : all) ask.request.sampling.max_tokens += 20;
  all[3].request.n = 4;
  all[9].request.n = 16;
  all[9].request.sampling.temperature = 0.8f;
  for (const auto& [dtype, rotated] :
       {std::pair(DType::kF8E4M3, false), {DType::kI8, false}, {DType::kI4, false}, {DType::kI4, true}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << ", rotated " << rotated);
    prepare_cuda("llama31");
    options_.kv_dtype = dtype;
    options_.kv_rotated = rotated;
    options_.kv_cache_bytes = (dtype == DType::kI4 ? 40 : 72) << 10;
    expect_the_same(all);
    EXPECT_GT(stats_.retractions, 0u);
  }
}

// Some want what only the host can give, so that steps run ahead now and then.
TEST_F(CudaOverlap, StormsWithRequestsThatTheHostSamples) {
  options_.max_running = 6;
  std::vector<Ask> all = asks(5, 40);
  for (std::size_t i = 0; i < all.size(); i += 7) {
    all[i].request.sampling.logprobs = 1;
    all[i].request.sampling.repetition_penalty = i % 2 == 0 ? 1.0f : 1.2f;
  }
  expect_the_same(all);
}

// A token that the device leaves to the host while the next step runs: it is computed again, and the host draws it;
// windows and streaming heads keep what that reads.
TEST_F(CudaOverlap, TokensThatTheDeviceLeavesToTheHostAreDrawnByIt) {
  for (const char* const golden : {"llama31", "mistral", "streaming"}) {
    SCOPED_TRACE(golden);
    const auto half = prepare_family(golden);
    std::vector<Ask> all = asks(6, 12);
    for (Ask& ask : all) {
      ask.cancel_at = 0;
      ask.request.sampling.max_tokens += 90;
      ask.request.sampling.temperature = 0.9f;
    }
    auto draws = std::make_shared<int>(0);
    fake::state().kernels["fovea_draw"] = [draws, draw = fake::state().kernels["fovea_draw"]](void** p) {
      const auto args = *static_cast<const abi::DrawArgs*>(p[0]);
      return [draws, args, draw = draw(p)] {
        draw();
        if (++*draws % 5 == 0) args.best[0] = abi::kDrawOnHost;
      };
    };
    expect_the_same(all, half);
    EXPECT_GT(*draws, 60);
  }
}

// The same token every time, while another stream's steps follow each other: the next step is not followed, so that the
// host finds its logits.
TEST_F(CudaOverlap, WhatTheDeviceLeavesToTheHostWaitsForNobody) {
  std::vector<Ask> all(2);
  for (int t = 0; t < 30; ++t) {
    for (Ask& ask : all) ask.request.prompt.push_back(t % 128);
  }
  all[0].request.sampling.temperature = 0.0f;
  all[0].request.sampling.max_tokens = 200;
  all[1].request.sampling.temperature = 0.9f;
  all[1].request.sampling.max_tokens = 20;
  for (Ask& ask : all) {
    ask.request.sampling.ignore_eos = true;
    ask.request.sampling.has_seed = true;
  }
  auto refusals = std::make_shared<int>(0);
  fake::state().kernels["fovea_draw"] = [refusals, draw = fake::state().kernels["fovea_draw"]](void** p) {
    const auto args = *static_cast<const abi::DrawArgs*>(p[0]);
    return [refusals, args, rows = fake::state().launch.grid[0], draw = draw(p)] {
      draw();
      for (std::uint32_t i = 0; i < rows; ++i) {
        if (args.draws[i].inverse_temperature == 0.0f || args.draws[i].u_low % 2 == 0) continue;
        args.best[i] = abi::kDrawOnHost;
        ++*refusals;
      }
    };
  };
  expect_the_same(all);
  EXPECT_GT(*refusals, 3);
  EXPECT_LE(*refusals, 3 * 2 * 20);  // three runs, each token twice at most
}

// Text is cut where it would be else, by stop strings too.
TEST_F(CudaOverlap, StopStringsAndTextAreThoseOfOneStepAfterTheOther) {
  if (embedded_needle().empty()) GTEST_SKIP() << "a build without the model";
  host_kernels::install(128, VariantId::kPlain, abi::GateKind::kSilu);
  options_.max_context = 128;
  const auto texts = [&](bool overlap, const std::vector<std::string>& stop) {
    options_.overlap_steps = overlap;
    auto engine = Engine::create(options_);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    std::vector<std::string> all(3);
    if (!engine.ok()) return all;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t ended = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      GenerateRequest request;
      request.prompt = *(*engine)->encode(i == 0 ? "The lamp is" : i == 1 ? "The garden has a" : "In the house", true);
      request.sampling.temperature = 0.0f;
      request.sampling.max_tokens = 12 + 2 * static_cast<std::int32_t>(i);
      request.sampling.ignore_eos = true;
      request.sampling.stop = stop;
      EXPECT_TRUE((*engine)
                      ->submit(request,
                               [&, i](const GenerationEvent& event) {
                                 const std::lock_guard lock(mutex);
                                 all[i] += event.text;
                                 if (event.finish == FinishReason::kNone) return;
                                 all[i] += "|" + event.stop_text;
                                 ++ended;
                                 changed.notify_all();
                               })
                      .ok());
    }
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return ended == all.size(); }));
    EXPECT_EQ((*engine)->stats().steps_ahead > 0, overlap);
    return all;
  };
  const std::vector<std::string> whole = texts(false, {});
  EXPECT_EQ(texts(true, {}), whole);
  ASSERT_GT(whole[0].size(), 16u);
  ASSERT_GT(whole[1].size(), 16u);
  const std::vector<std::string> stop = {whole[0].substr(8, 5), whole[1].substr(12, 4)};
  const std::vector<std::string> cut = texts(false, stop);
  EXPECT_LT(cut[0].size(), whole[0].size());
  EXPECT_EQ(texts(true, stop), cut);
}

// What fails between two steps ends those that run with the reason; later ones find nothing wrong in the cache, where
// chunks of prompts that failed had been published.
TEST_F(CudaOverlap, FaultsWhileAStepIsAheadEndRequestsAndNothingElse) {
  const std::vector<Tokens> expected = tokens_of(answers(false));
  struct Fault {
    const char* function;
    bool in_prompts;
  };
  std::vector<Fault> faults;
  for (const char* function : {"cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2",
                               "cuMemcpyDtoHAsync_v2", "cuEventSynchronize", "cuEventRecord"}) {
    faults.push_back({function, false});
    if (function != std::string("cuGraphLaunch")) faults.push_back({function, true});
  }
  for (const auto [function, in_prompts] : faults) {
    SCOPED_TRACE(::testing::Message() << function << (in_prompts ? " in prompts" : ""));
    options_.chunk_tokens = in_prompts ? 24 : 64;
    options_.max_running = 8;
    const std::size_t failing = in_prompts ? 0 : 5, tokens_before = in_prompts ? 1 : 5;
    prepare_cuda("llama31");
    fake::state().late = true;
    // A kernel is launched by itself where nothing was captured.
    if (function == std::string("cuLaunchKernelEx")) fake::state().failures["cuGraphInstantiateWithFlags"] = 2;
    auto engine = create_engine(path_, {}, options_);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const auto ask = [&](bool fails) {
      std::mutex mutex;
      std::condition_variable changed;
      std::vector<Tokens> tokens(requests_.size());
      std::vector<FinishReason> finishes(requests_.size(), FinishReason::kNone);
      std::size_t ended = 0;
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        EXPECT_TRUE((*engine)
                        ->submit(requests_[i],
                                 [&, i](const GenerationEvent& event) {
                                   const std::lock_guard lock(mutex);
                                   tokens[i].insert(tokens[i].end(), event.tokens.begin(), event.tokens.end());
                                   if (fails && i == failing && tokens[i].size() == tokens_before) {
                                     fake::state().failures[function] = 13;
                                   }
                                   finishes[i] = event.finish;
                                   if (event.finish == FinishReason::kNone) return;
                                   if (event.finish == FinishReason::kError) {
                                     EXPECT_THAT(event.error.message(), HasSubstr(std::string(function).substr(0, 7)));
                                   }
                                   ++ended;
                                   changed.notify_all();
                                 })
                        .ok());
      }
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended == requests_.size(); }));
      EXPECT_EQ(finishes[5], fails ? FinishReason::kError : FinishReason::kLength);
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        const Tokens first(expected[i].begin(), expected[i].begin() + static_cast<std::ptrdiff_t>(tokens[i].size()));
        EXPECT_EQ(tokens[i], first) << i;
      }
    };
    ask(true);
    EXPECT_GT((*engine)->stats().steps_ahead, 0u);
    fake::state().failures.clear();
    ask(false);
    (*engine)->flush_cache();
    EXPECT_TRUE((*engine)->check_integrity().ok());
    EXPECT_EQ((*engine)->stats().kv_bytes_in_use, 0);
  }
}

}  // namespace
}  // namespace fovea
