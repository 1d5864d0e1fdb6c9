// Log probabilities of prompts, with models of random weights: the same bits as where each token was forced upon the
// model after those before it, whatever is cached, beside others, in small chunks and when pages run out.
#include "engine/engine_model_test_util.h"

namespace fovea {
namespace {

struct Scores {
  std::vector<TokenLogprob> tokens;
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<std::int32_t> ranks;
  double queue_seconds = -1.0;
  Answer answer;
};

class PromptScores : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = temp_config(std::string("scores_") + GetParam());
    ASSERT_TRUE(write_file_atomic(path_, config_of(GetParam())).ok());
    options_.batch_invariant = true;
    options_.num_threads = 1;
    options_.chunk_tokens = 32;
    options_.max_running = 8;
    options_.kv_cache_bytes = 16 << 20;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void create() {
    auto created = create_engine(path_, std::nullopt, options_);
    ASSERT_TRUE(created.ok()) << created.status().message();
    engine_ = std::move(*created);
  }
  static Tokens tokens(int count, std::uint64_t seed = 1) {
    PhiloxRng rng(seed);
    Tokens out;
    for (int i = 0; i < count; ++i) out.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    return out;
  }
  static GenerateRequest request(Tokens prompt) {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 1;
    request.sampling.ignore_eos = true;
    return request;
  }
  // Of choice 0, all requests at once.
  std::vector<Scores> ask(const std::vector<GenerateRequest>& requests) {
    std::vector<Scores> out(requests.size());
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t open = 0;
    for (const GenerateRequest& one : requests) open += static_cast<std::size_t>(one.n);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine_->submit(requests[i], [&, i](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        Scores& scores = out[i];
        scores.tokens.insert(scores.tokens.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
        scores.top.insert(scores.top.end(), event.prompt_top_logprobs.begin(), event.prompt_top_logprobs.end());
        scores.ranks.insert(scores.ranks.end(), event.prompt_ranks.begin(), event.prompt_ranks.end());
        if (event.finish != FinishReason::kNone) scores.queue_seconds = event.queue_seconds;
        if (event.choice == 0) {
          scores.answer.tokens.insert(scores.answer.tokens.end(), event.tokens.begin(), event.tokens.end());
          for (const TokenLogprob& entry : event.logprobs) scores.answer.logprobs.push_back(entry.logprob);
          scores.answer.finish = event.finish;
          scores.answer.cached = event.cached_tokens;
        }
        EXPECT_NE(event.finish, FinishReason::kError) << event.error.message();
        if (event.finish != FinishReason::kNone) --open;
        changed.notify_all();
      });
      EXPECT_TRUE(id.ok()) << id.status().message();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
    return out;
  }
  // Each token of the prompt, forced upon the model behind those before it.
  std::vector<float> one_by_one(const Tokens& prompt) {
    std::vector<GenerateRequest> requests;
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      GenerateRequest one = request(Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i)));
      one.sampling.logit_bias = {{prompt[i], 100.0f}};
      one.sampling.logprobs = 0;
      requests.push_back(std::move(one));
    }
    std::vector<float> out;
    for (const Scores& scores : ask(requests)) out.push_back(scores.answer.logprobs.at(0));
    return out;
  }

  std::filesystem::path path_;
  EngineOptions options_;
  std::unique_ptr<EngineCore> engine_;
};

TEST_P(PromptScores, AreThoseOfTokensForcedOneByOne) {
  create();
  const Tokens prompt = tokens(150);
  const std::vector<float> expected = one_by_one(prompt);  // the prompt is in the cache now
  GenerateRequest scored = request(prompt);
  scored.prompt_logprobs = 3;
  scored.n = 2;
  scored.sampling.max_tokens = 4;
  const Scores scores = ask({scored})[0];
  EXPECT_EQ(scores.answer.cached, 0);
  EXPECT_EQ(scores.answer.tokens.size(), 4u);
  ASSERT_EQ(scores.tokens.size(), prompt.size() - 1);
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    EXPECT_EQ(scores.tokens[i].token, prompt[i + 1]);
    EXPECT_EQ(scores.tokens[i].logprob, expected[i]) << i;
    ASSERT_EQ(scores.top[i].size(), 3u);
    EXPECT_GE(scores.top[i][0].logprob, scores.top[i][1].logprob);
    EXPECT_GE(scores.top[i][0].logprob, scores.tokens[i].logprob);
  }
  EXPECT_GE(scores.queue_seconds, 0.0);
  EXPECT_LT(scores.queue_seconds, 60.0);
  // Without an answer, and without alternatives.
  scored.n = 1;
  scored.prompt_only = true;
  scored.prompt_logprobs = 0;
  const Scores alone = ask({scored})[0];
  EXPECT_EQ(alone.answer.finish, FinishReason::kLength);
  EXPECT_TRUE(alone.answer.tokens.empty());
  ASSERT_EQ(alone.tokens.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(alone.tokens[i].logprob, expected[i]);
    EXPECT_TRUE(alone.top[i].empty());
  }
  // What was scored serves others from the cache.
  EXPECT_GT(ask({request(prompt)})[0].answer.cached, 100);
  // The greedy answer is what a prompt with it is scored as, bit for bit.
  Tokens longer = prompt;
  longer.insert(longer.end(), scores.answer.tokens.begin(), scores.answer.tokens.end());
  scored.prompt = longer;
  scored.prompt_logprobs = 1;
  const Scores said = ask({scored})[0];
  for (std::size_t i = prompt.size() - 1; i < said.tokens.size(); ++i) {
    EXPECT_EQ(said.tokens[i].logprob, said.top[i][0].logprob);
    EXPECT_EQ(said.tokens[i].token, said.top[i][0].token);
  }
  EXPECT_TRUE(engine_->check_integrity().ok());
}

// Also of tokens that are not among the alternatives asked for.
TEST_P(PromptScores, RankEveryToken) {
  create();
  const Tokens prompt = tokens(60, 3);
  GenerateRequest scored = request(prompt);
  scored.prompt_logprobs = 0;
  const std::vector<std::int32_t> ranks = ask({scored})[0].ranks;
  scored.prompt_logprobs = kMaxTopLogprobs;
  const Scores scores = ask({scored})[0];
  EXPECT_EQ(scores.ranks, ranks);
  ASSERT_EQ(ranks.size(), prompt.size() - 1);
  int beyond = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ASSERT_GE(ranks[i], 1);
    ASSERT_LE(ranks[i], 128);
    if (ranks[i] <= kMaxTopLogprobs) {
      EXPECT_EQ(scores.top[i][static_cast<std::size_t>(ranks[i] - 1)].token, prompt[i + 1]);
    } else {
      ++beyond;
      EXPECT_LE(scores.tokens[i].logprob, scores.top[i].back().logprob);
    }
  }
  EXPECT_GT(beyond, 0);
}

TEST_P(PromptScores, SameInACrowdAndWhenPagesRunOut) {
  create();
  std::vector<Tokens> prompts;
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 6; ++i) {
    prompts.push_back(tokens(40 + 17 * i, 2));  // each begins with the one before
    expected.push_back(one_by_one(prompts.back()));
  }
  for (const bool tight : {false, true}) {
    if (tight) {
      const EngineStats stats = engine_->stats();
      options_.kv_cache_bytes = options_.kv_cache_bytes / stats.pages_total * 16;
      create();
    }
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(request(prompts[i]));
      requests.back().prompt_logprobs = 0;
      requests.back().sampling.max_tokens = 60;
      requests.push_back(request(tokens(60, 9 + i)));  // not scored
      requests.back().sampling.max_tokens = 60;
    }
    const std::vector<Scores> scores = ask(requests);
    for (int i = 0; i < 6; ++i) {
      const std::vector<TokenLogprob>& got = scores[2 * i].tokens;
      ASSERT_EQ(got.size(), expected[i].size());
      for (std::size_t k = 0; k < got.size(); ++k) EXPECT_EQ(got[k].logprob, expected[i][k]) << i << " " << k;
      EXPECT_TRUE(scores[2 * i + 1].tokens.empty());
    }
    if (tight && std::string(GetParam()) == "llama31") {  // the other's windows hold few pages
      EXPECT_GT(engine_->stats().retractions, 0u);
    }
    EXPECT_TRUE(engine_->check_integrity().ok());
  }
}

TEST_P(PromptScores, OneTokenHasNone) {
  create();
  GenerateRequest one = request({5});
  one.prompt_logprobs = 2;
  const Scores scores = ask({one})[0];
  EXPECT_TRUE(scores.tokens.empty());
  EXPECT_EQ(scores.answer.tokens.size(), 1u);
  one.prompt_only = true;
  EXPECT_EQ(ask({one})[0].answer.finish, FinishReason::kLength);
}

TEST_P(PromptScores, RefusesWhatItCannotDo) {
  create();
  const auto refused = [&](const GenerateRequest& wrong) {
    std::string parameter;
    EXPECT_EQ(engine_->check(wrong, &parameter).code(), StatusCode::kInvalidArgument);
    return parameter;
  };
  GenerateRequest wrong = request({1, 2});
  wrong.prompt_logprobs = kMaxTopLogprobs + 1;
  EXPECT_EQ(refused(wrong), "prompt_logprobs");
  wrong.prompt_logprobs = -2;
  EXPECT_EQ(refused(wrong), "prompt_logprobs");
  wrong.prompt_logprobs = -1;
  wrong.prompt_only = true;
  EXPECT_EQ(refused(wrong), "prompt_only");
  wrong.prompt_logprobs = 0;
  wrong.n = 2;
  EXPECT_EQ(refused(wrong), "prompt_only");
}

INSTANTIATE_TEST_SUITE_P(Models, PromptScores, ::testing::Values("llama31", "gemma2"));

}  // namespace
}  // namespace fovea
