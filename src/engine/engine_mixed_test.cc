// Layers of which some KV heads stream and the others keep all: those select pages, reuse lists and share prefixes in
// attention as heads of other layers do. Models of random weights with 4 KV heads, of which every second one streams.
#include "engine/engine_model_test_util.h"

namespace fovea {
namespace {

const HeadProfile kMixed = profile(100, 0, {{0, 1}, {0, 3}, {1, 0}, {1, 1}});
// As many bytes as so many pages of tokens of all groups take: 2 layers of 4 heads of 32 elements in bf16.
constexpr std::int64_t bytes_of_tokens(std::int64_t tokens) { return tokens * 2 * 4 * 32 * 2 * 2; }

class MixedLayers : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = temp_config("mixed");
    ASSERT_TRUE(write_file_atomic(path_, config_of("llama31", 4)).ok());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

struct Reuse {
  std::int32_t interval;
  std::int32_t candidates;
};

// Alone or retracted, forked and computed again in a crowd: the same bits, also where lists serve several steps.
TEST_F(MixedLayers, SameBitsAloneAndInAStorm) {
  std::vector<GenerateRequest> requests = selecting_requests();
  requests[2].n = 3;
  requests[2].sampling.temperature = 1.0f;
  requests[2].sampling.has_seed = true;
  requests[6].n = 2;
  requests[6].sampling.temperature = 1.0f;
  requests[6].sampling.has_seed = true;
  for (GenerateRequest& request : requests) request.sampling.max_tokens = 60;
  requests[7].kv_budget = "T/2";
  GenerateRequest dense = requests[3];
  dense.sparse = "off";
  requests.push_back(dense);
  for (const std::optional<HeadProfile>& streaming : {std::optional(kMixed), std::optional<HeadProfile>()}) {
    for (const Reuse reuse : {Reuse{1, 4}, Reuse{4, 4}, Reuse{3, 0}}) {
      SCOPED_TRACE(::testing::Message() << "mixed " << streaming.has_value() << ", interval " << reuse.interval << ", "
                                        << reuse.candidates << " candidates");
      EngineOptions alone = selecting_options("quest");
      alone.page_tokens = reuse.interval > 1 ? 32 : 16;
      alone.sparse_interval = reuse.interval;
      alone.sparse_candidates = reuse.candidates;
      alone.prefix_cache = false;
      alone.share_prefixes = false;
      EngineStats stats;
      const std::vector<Answer> expected = run(path_, streaming, alone, requests, false, stats);
      EXPECT_GT(stats.sparse_queries, 0u);
      EXPECT_EQ(stats.sparse_heads, streaming ? 4u : 8u);
      EXPECT_LT(stats.sparse_pages_read, stats.sparse_pages_kept);
      EXPECT_EQ(stats.sparse_rescorings > 0, reuse.interval > 1 && reuse.candidates > 0);
      EXPECT_EQ(stats.sparse_reuses > 0, reuse.interval > 1 && reuse.candidates == 0);
      EngineOptions crowd = alone;
      crowd.prefix_cache = true;
      crowd.share_prefixes = true;
      crowd.chunk_tokens = 200;
      for (const bool tight : {false, true}) {
        // Few: the answers do not fit side by side.
        if (tight) crowd.kv_cache_bytes = bytes_of_tokens(1300);
        EngineStats crowd_stats;
        const std::vector<Answer> answers = run(path_, streaming, crowd, requests, true, crowd_stats);
        ASSERT_EQ(answers.size(), expected.size());
        for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "choice " << i;
        EXPECT_TRUE(crowd_stats.retractions > 0 || !tight || reuse.interval == 1);
      }
    }
  }
}

// Arrivals, cancellations, forks, eviction and retraction: at the end every page of both pools is free (run() looks).
TEST_F(MixedLayers, StormsLeakNothing) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    PhiloxRng rng(seed);
    std::vector<GenerateRequest> requests;
    std::vector<std::size_t> cancel_at;
    for (int i = 0; i < 30; ++i) {
      GenerateRequest request = selecting_requests()[rng.next_below(8)];
      request.n = 1 + static_cast<std::int32_t>(rng.next_below(3));
      request.sampling.temperature = 1.0f;
      request.sampling.max_tokens = 1 + static_cast<std::int32_t>(rng.next_below(40));
      request.priority = static_cast<std::int32_t>(rng.next_below(2));
      request.sparse_prompt_tokens = static_cast<std::int32_t>(rng.next_below(100));
      if (rng.next_below(3) == 0) {
        request.sparse = "off";
        request.sparse_prompt_tokens = 0;
      }
      requests.push_back(request);
      cancel_at.push_back(rng.next_below(3) == 0 ? 1 + rng.next_below(20) : 0);
    }
    EngineOptions options = selecting_options("lserve");
    options.batch_invariant = seed % 2 == 0;
    options.sparse_interval = seed < 2 ? 1 : 4;
    options.chunk_tokens = 150;
    options.kv_cache_bytes = bytes_of_tokens(2500);
    options.kv_dtype = seed % 2 == 0 ? DType::kBF16 : DType::kI4;
    EngineStats stats;
    run(path_, kMixed, options, requests, true, stats, cancel_at);
    EXPECT_GT(stats.requests_cancelled, 0u);
    EXPECT_GT(stats.requests_finished, 0u);
    EXPECT_EQ(stats.requests_failed, 0u);
    EXPECT_GT(stats.cached_tokens, 0u);
  }
}

TEST_F(MixedLayers, UnderBudgetTheBitsOfDense) {
  std::vector<GenerateRequest> requests = selecting_requests();
  for (GenerateRequest& request : requests) request.sparse_prompt_tokens = 0;
  EngineOptions options = selecting_options("off");
  options.batch_invariant = false;
  EngineStats stats;
  const std::vector<Answer> dense = run(path_, kMixed, options, requests, false, stats);
  options.sparse = "quest";
  options.kv_budget = "1024";
  EXPECT_EQ(run(path_, kMixed, options, requests, false, stats), dense);
  EXPECT_EQ(stats.sparse_queries, 0u);
}

// Exactly the pages that length and budget call for, by the full heads alone.
TEST_F(MixedLayers, ReadThePagesExpected) {
  GenerateRequest request = selecting_requests()[3];
  request.sparse_prompt_tokens = 10;
  EngineOptions options = selecting_options("quest");
  EngineStats stats;
  run(path_, kMixed, options, {request}, false, stats);
  const auto prompt = static_cast<std::uint64_t>(request.prompt.size());
  std::uint64_t queries = 0;
  std::uint64_t kept = 0;
  for (std::uint64_t seen = prompt - 9; seen < prompt + 24; ++seen) {
    queries += 4;
    kept += 4 * ((seen + 15) / 16);
  }
  EXPECT_EQ(stats.sparse_queries, queries);
  EXPECT_EQ(stats.sparse_pages_read, queries * 256 / 16);
  EXPECT_EQ(stats.sparse_pages_kept, kept);
}

// Full heads of mixed layers read what requests share once; with and without selection beside it.
TEST_F(MixedLayers, SharePrefixesInAttention) {
  for (const char* sparse : {"off", "quest"}) {
    std::vector<GenerateRequest> requests(6, selecting_requests()[3]);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt.back() = static_cast<std::int32_t>(i);
      if (i % 2 == 0) requests[i].sparse = "off";
    }
    EngineOptions options = selecting_options(sparse);
    EngineStats shared, unshared;
    const std::vector<Answer> answers = run(path_, kMixed, options, requests, true, shared);
    EXPECT_LT(shared.kv_bytes_read, shared.kv_bytes_unshared);
    options.share_prefixes = false;
    EXPECT_EQ(run(path_, kMixed, options, requests, true, unshared), answers);
    EXPECT_EQ(unshared.kv_bytes_read, unshared.kv_bytes_unshared);
    EXPECT_LT(shared.kv_bytes_read, unshared.kv_bytes_read);
  }
}

}  // namespace
}  // namespace fovea
