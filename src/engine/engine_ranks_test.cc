// The engine over two and four ranks, as threads: the tokens of one, under every feature that moves pages or tokens;
// storms that leave nothing behind; and ends that no request waits through.
#include <gtest/gtest.h>

#include <thread>

#include "device/group/process_group.h"
#include "engine/engine_model_test_util.h"

namespace fovea {
namespace {

// Ranks 1, 2, .. of a group, following rank 0, whose group is leader().
class Ranks {
 public:
  Ranks(int size, const std::string& config, const std::optional<HeadProfile>& streaming,
        const EngineOptions& options) {
    auto groups = ProcessGroup::of_threads(size);
    EXPECT_TRUE(groups.ok()) << groups.status().message();
    leader_ = (*groups)[0];
    for (int rank = 1; rank < size; ++rank) {
      threads_.emplace_back([config, streaming, options, group = (*groups)[static_cast<std::size_t>(rank)]] {
        auto engine = create_engine(config, streaming, options, group);
        ASSERT_TRUE(engine.ok()) << engine.status().message();
        const Status status = (*engine)->follow();
        EXPECT_TRUE(status.ok()) << status.message();
      });
    }
  }
  ~Ranks() {
    for (std::thread& thread : threads_) thread.join();
  }
  const std::shared_ptr<ProcessGroup>& leader() const { return leader_; }

 private:
  std::shared_ptr<ProcessGroup> leader_;
  std::vector<std::thread> threads_;
};

std::string write_config(const std::string& golden) {
  const std::string path = temp_config("ranks_" + golden);
  EXPECT_TRUE(write_file_atomic(path, config_of(golden)).ok());
  return path;
}

std::vector<GenerateRequest> requests_of(int count, std::uint64_t seed) {
  PhiloxRng rng(seed);
  Tokens document;
  for (int i = 0; i < 400; ++i) document.push_back(static_cast<std::int32_t>(rng.next_below(128)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerateRequest request;
    request.prompt.assign(document.begin(), document.begin() + 20 + i * 53 % 380);
    for (int n = 0; n < 3 + i % 5; ++n) request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    request.sampling.max_tokens = 8 + i % 17;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = i % 4 == 3 ? 0.8f : 0.0f;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    request.sampling.has_seed = true;
    request.n = i % 6 == 5 ? 3 : 1;
    requests.push_back(request);
  }
  return requests;
}

EngineOptions exact_options() {
  EngineOptions options;
  options.batch_invariant = true;
  options.kv_dtype = DType::kF32;
  options.chunk_tokens = 128;
  options.max_running = 8;
  options.kv_cache_bytes = 16 << 20;
  options.num_threads = 1;
  options.itl_target_ms = 0.0f;
  return options;
}

void expect_same_tokens(const std::vector<Answer>& got, const std::vector<Answer>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens, expected[i].tokens) << what << ", answer " << i;
}

TEST(EngineRanks, TokensAreThoseOfOne) {
  const std::vector<GenerateRequest> requests = requests_of(12, 3);
  for (const std::string golden : {"llama31", "qwen3", "gemma2", "gemma3", "mistral", "phi3", "olmo2"}) {
    const std::string config = write_config(golden);
    EngineStats stats;
    const auto alone = run(config, {}, exact_options(), requests, true, stats);
    const bool two_heads = golden == "phi3" || golden == "olmo2";
    for (const int size : {2, 4}) {
      if (two_heads && size == 4) continue;
      const Ranks ranks(size, config, {}, exact_options());
      const auto answers = run(config, {}, exact_options(), requests, true, stats, {}, ranks.leader());
      expect_same_tokens(answers, alone, golden + " over " + std::to_string(size));
    }
  }
}

TEST(EngineRanks, HeadsThatStreamMayLieOnOneRank) {
  const std::string config = write_config("llama31");
  const std::vector<GenerateRequest> requests = requests_of(8, 5);
  for (const auto& heads : {std::vector<ModelHead>{{0, 0}}, std::vector<ModelHead>{{0, 1}, {1, 0}, {1, 1}}}) {
    const HeadProfile streaming = profile(64, 128, heads);
    EngineStats stats;
    const auto alone = run(config, streaming, exact_options(), requests, true, stats);
    for (const int size : {2, 4}) {
      const Ranks ranks(size, config, streaming, exact_options());
      const auto answers = run(config, streaming, exact_options(), requests, true, stats, {}, ranks.leader());
      expect_same_tokens(answers, alone, std::to_string(size) + " ranks");
    }
  }
}

TEST(EngineRanks, StormsLeaveNothing) {
  const std::string config = write_config("gemma2");
  std::vector<GenerateRequest> requests = requests_of(40, 7);
  std::vector<std::size_t> cancel_at;
  for (GenerateRequest& request : requests) request.sampling.max_tokens += 50;
  for (std::size_t i = 0; i < requests.size(); ++i) cancel_at.push_back(i % 3 == 0 ? 1 + i % 7 : 0);
  EngineOptions options = exact_options();
  options.speculate = "ngram";
  options.kv_cache_bytes = 400 << 10;  // too little for all at once: some are retracted
  options.max_context = 512;
  EngineStats stats;
  const Ranks ranks(2, config, {}, options);
  const auto answers = run(config, {}, options, requests, true, stats, cancel_at, ranks.leader());
  EXPECT_GT(stats.retractions, 0u);
  EXPECT_GT(stats.requests_cancelled, 0u);
  EXPECT_GT(stats.draft_tokens, 0u);
  // Whoever was not cancelled has the tokens that it has alone.
  EngineStats ignored;
  options.kv_cache_bytes = 16 << 20;
  const auto alone = run(config, {}, options, requests, true, ignored);
  ASSERT_EQ(answers.size(), alone.size());
  std::size_t compared = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].finish == FinishReason::kCancelled) continue;
    EXPECT_EQ(answers[i].tokens, alone[i].tokens) << i;
    ++compared;
  }
  EXPECT_GT(compared, 20u);
}

TEST(EngineRanks, ARankThatDiesFailsItsRequests) {
  const std::string config = write_config("qwen3");
  auto groups = ProcessGroup::of_threads(2);
  ASSERT_TRUE(groups.ok());
  std::thread thread([&config, group = std::exchange((*groups)[1], nullptr)] {
    const auto engine = create_engine(config, {}, exact_options(), group);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    // Both go, without a goodbye.
  });
  auto engine = create_engine(config, {}, exact_options(), (*groups)[0]);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  std::mutex mutex;
  std::condition_variable changed;
  Status error;
  bool ended = false;
  const auto submit = [&] {
    return (*engine)->submit(requests_of(1, 1)[0], [&](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      if (event.finish == FinishReason::kNone) return;
      error = event.error;
      ended = true;
      changed.notify_all();
    });
  };
  ASSERT_TRUE(submit().ok());
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return ended; }));
  EXPECT_NE(error.message().find("rank 1 of 2"), std::string::npos) << error.message();
  lock.unlock();
  thread.join();
  // Nobody gets into an engine that has ended.
  while ((*engine)->stats().healthy) std::this_thread::yield();
  EXPECT_FALSE(submit().ok());
}

TEST(EngineRanks, RanksThatDifferAreRefused) {
  const std::string config = write_config("llama2");
  auto groups = ProcessGroup::of_threads(2);
  ASSERT_TRUE(groups.ok());
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions options = exact_options();
      options.page_tokens = 16 + 16 * rank;
      auto engine = create_engine(config, {}, options, (*groups)[static_cast<std::size_t>(rank)]);
      said[static_cast<std::size_t>(rank)] = engine.ok() ? "" : engine.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : said)
    EXPECT_EQ(message, "rank 1 has other options than rank 0; start all ranks alike");
  for (const auto& group : *groups) group->leave();
}

}  // namespace
}  // namespace fovea
