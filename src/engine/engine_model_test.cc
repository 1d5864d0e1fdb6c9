// The engine with real models (random weights): with batch_invariant, a request's tokens and log-probabilities are the
// same bits alone, without a prefix cache and in other chunks as in a crowd that shares prefixes and loses its pages.
#include "engine/engine_model_test_util.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

// Prefixes of one document, some longer than a chunk of 512 tokens, and questions of their own.
std::vector<GenerateRequest> make_requests() {
  PhiloxRng rng(20);
  Tokens document;
  for (int i = 0; i < 900; ++i) document.push_back(static_cast<std::int32_t>(rng.next_below(128)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 10; ++i) {
    GenerateRequest request;
    const int lengths[] = {0, 300, 700, 700, 899};
    request.prompt.assign(document.begin(), document.begin() + lengths[i % 5]);
    for (std::uint32_t n = 1 + rng.next_below(30); n > 0; --n) {
      request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    }
    request.sampling.max_tokens = 24;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    request.sampling.has_seed = true;
    request.sampling.logprobs = 0;
    requests.push_back(request);
  }
  return requests;
}

// Of all KV groups together: 2 layers of 2 KV heads of 32 elements, K and V in bf16, 16 tokens.
constexpr std::int64_t kStreamingPageBytes = std::int64_t{2} * 2 * 32 * 2 * 2 * 16;

struct Subject {
  std::string name;
  std::string golden;
  std::optional<HeadProfile> streaming;
  DType kv_dtype = DType::kBF16;
  bool kv_rotated = false;
};

class EngineModel : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    path_ = temp_config("engine_" + GetParam().name);
    ASSERT_TRUE(write_file_atomic(path_, config_of(GetParam().golden)).ok());
  }
  void TearDown() override { fs::remove(path_); }

  fs::path path_;
};

TEST_P(EngineModel, SameBitsAloneAndInACrowd) {
  const std::vector<GenerateRequest> requests = make_requests();
  const std::optional<HeadProfile>& streaming = GetParam().streaming;
  EngineOptions alone;
  alone.num_threads = 2;
  alone.kv_dtype = GetParam().kv_dtype;
  alone.kv_rotated = GetParam().kv_rotated;
  alone.batch_invariant = true;
  alone.prefix_cache = false;
  alone.share_prefixes = false;
  alone.chunk_tokens = 512;
  alone.kv_cache_bytes = 64 << 20;
  EngineStats stats;
  const std::vector<Answer> expected = run(path_, streaming, alone, requests, false, stats);
  ASSERT_EQ(expected.size(), requests.size());
  EXPECT_EQ(stats.cached_tokens, 0u);

  EngineOptions crowd = alone;
  crowd.prefix_cache = true;
  crowd.share_prefixes = true;
  crowd.chunk_tokens = 200;
  for (const bool together : {false, true}) {
    for (const bool tight : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "together " << together << ", few pages " << tight);
      // Few: two of the longest requests do not fit side by side.
      const std::int64_t page_bytes = streaming ? kStreamingPageBytes : stats.page_bytes;
      crowd.kv_cache_bytes = tight ? page_bytes * 100 : 64 << 20;
      EngineStats crowd_stats;
      const std::vector<Answer> answers = run(path_, streaming, crowd, requests, together, crowd_stats);
      ASSERT_EQ(answers.size(), expected.size());
      for (std::size_t i = 0; i < answers.size(); ++i) {
        EXPECT_TRUE(answers[i] == expected[i]) << "request " << i << " of " << requests[i].prompt.size() << " tokens";
      }
      EXPECT_GT(crowd_stats.cached_tokens, 0u);
    }
  }
}

// Beside a stream, with so short a time for a step that the chunks of prompts are left again and again.
TEST_P(EngineModel, SameBitsWhereChunksAreLeft) {
  std::vector<GenerateRequest> requests = make_requests();
  requests.resize(5);
  std::swap(requests[0], requests[3]);
  requests[0].sampling.max_tokens = 250;
  EngineOptions options;
  options.num_threads = 2;
  options.kv_dtype = GetParam().kv_dtype;
  options.kv_rotated = GetParam().kv_rotated;
  options.batch_invariant = true;
  options.chunk_tokens = 512;
  options.kv_cache_bytes = 64 << 20;
  options.itl_target_ms = 0.0f;
  EngineStats stats;
  const std::vector<Answer> expected = run(path_, GetParam().streaming, options, requests, false, stats);
  options.prefix_cache = false;
  options.itl_target_ms = 0.2f;
  const std::vector<Answer> answers = run(path_, GetParam().streaming, options, requests, true, stats);
  ASSERT_EQ(answers.size(), expected.size());
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "request " << i;
}

// Beside so many streams that their widest rows take most of the activations' memory.
TEST_P(EngineModel, SameBitsWhereChunksAreLeftBesideManyStreams) {
  std::vector<GenerateRequest> requests;
  PhiloxRng rng(9);
  for (int i = 0; i < 40; ++i) {
    GenerateRequest request;
    for (int k = 0; k < 5 + i % 12; ++k) request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    request.n = i == 0 ? 30 : 1;
    request.sampling.max_tokens = i == 0 ? 120 : 2;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.sampling.logprobs = 0;
    requests.push_back(request);
  }
  EngineOptions options;
  options.num_threads = 1;
  options.kv_dtype = GetParam().kv_dtype;
  options.kv_rotated = GetParam().kv_rotated;
  options.batch_invariant = true;
  options.chunk_tokens = 64;
  options.max_running = 31;
  options.kv_cache_bytes = 64 << 20;
  options.prefix_cache = false;
  options.itl_target_ms = 0.0f;
  EngineStats stats;
  const std::vector<Answer> expected = run(path_, GetParam().streaming, options, requests, true, stats);
  options.itl_target_ms = 3.0f;
  const auto clock = [now = 0.0]() mutable { return now += 1e-3; };  // a part ends soon, wherever it is
  const std::vector<Answer> answers =
      run(path_, GetParam().streaming, options, requests, true, stats, {}, nullptr, nullptr, clock);
  ASSERT_EQ(answers.size(), expected.size());
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "request " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Families, EngineModel,
    ::testing::Values(Subject{"llama31", "llama31", {}}, Subject{"gemma2", "gemma2", {}},
                      Subject{"mistral", "mistral", {}}, Subject{"llama31_int8", "llama31", {}, DType::kI8},
                      Subject{"gemma2_int4", "gemma2", {}, DType::kI4},
                      Subject{"llama31_int4_rotated", "llama31", {}, DType::kI4, true},
                      Subject{"streaming_int8", "llama31", profile(100, 0, {{0, 1}, {1, 0}}), DType::kI8},
                      Subject{"streaming", "llama31", profile(100, 0, {{0, 1}, {1, 0}, {1, 1}})},
                      Subject{"all_streaming", "llama31", profile(90, 0, {{0, 0}, {0, 1}, {1, 0}, {1, 1}})},
                      Subject{"wider_prompts", "qwen3", profile(70, 300, {{0, 0}, {1, 1}})}),
    [](const auto& info) { return info.param.name; });

class StreamingEngine : public EngineModel {};

// Windows that hold everything: the same bits as without a profile, through other pools, plans and page lists.
TEST_P(StreamingEngine, AWindowOverEverythingIsDense) {
  EngineOptions options;
  options.num_threads = 1;
  options.kv_cache_bytes = 64 << 20;
  options.chunk_tokens = 200;
  EngineStats stats;
  const std::vector<Answer> dense = run(path_, {}, options, make_requests(), false, stats);
  const std::vector<Answer> streaming = run(path_, GetParam().streaming, options, make_requests(), false, stats);
  EXPECT_TRUE(dense == streaming);
}

// The others' memory and bytes: a request of 900 tokens keeps 64 + 100 of them, and pages cut at the ends.
TEST_P(StreamingEngine, StreamingHeadsKeepAndReadSinksAndTheWindow) {
  HeadProfile narrow = *GetParam().streaming;
  narrow.local_tokens = 100;
  EngineOptions options;
  options.num_threads = 1;
  options.kv_cache_bytes = 64 << 20;
  options.chunk_tokens = 128;
  options.max_running = 4;
  GenerateRequest request;
  for (int i = 0; i < 1500; ++i) request.prompt.push_back(i % 100);
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  EngineStats dense, streaming;
  run(path_, {}, options, {request}, false, dense);
  run(path_, narrow, options, {request}, false, streaming);
  const auto share = static_cast<double>(narrow.streaming.size()) / 4;  // of the heads
  const double kept = (64.0 + 100 + 128 + 2 * 16) / 1520;
  EXPECT_LE(static_cast<double>(streaming.kv_bytes_peak),
            static_cast<double>(dense.kv_bytes_peak) * (1 - share + share * kept));
  EXPECT_LT(static_cast<double>(streaming.kv_bytes_read),
            static_cast<double>(dense.kv_bytes_read) * (1 - share + share * 0.5));
}

INSTANTIATE_TEST_SUITE_P(Profiles, StreamingEngine,
                         ::testing::Values(Subject{"mixed", "llama31", profile(4096, 0, {{0, 1}, {1, 0}})},
                                           Subject{"layers", "llama31", profile(4096, 0, {{1, 0}, {1, 1}})}),
                         [](const auto& info) { return info.param.name; });

class EngineSelection : public ::testing::TestWithParam<std::string> {};

// Whether a query selects, and what, depends on its request alone: not on chunks, the prefix cache, neighbours that
// read all, or pages that are given up and computed again.
TEST_P(EngineSelection, SameBitsAloneAndInACrowd) {
  const fs::path path = temp_config("selection_" + GetParam());
  ASSERT_TRUE(write_file_atomic(path, config_of(GetParam())).ok());
  std::vector<GenerateRequest> requests = selecting_requests();
  requests[3].sparse = "off";
  requests[7].kv_budget = "T/2";
  for (const std::int32_t page_tokens : {16, 64}) {
    EngineOptions alone = selecting_options("lserve");
    alone.page_tokens = page_tokens;
    alone.prefix_cache = false;
    if (page_tokens == 64) {
      alone.kv_dtype = DType::kI4;  // statistics are of the keys as stored
      alone.kv_rotated = GetParam() == "llama31";
    }
    EngineStats stats;
    const std::vector<Answer> expected = run(path, {}, alone, requests, false, stats);
    ASSERT_EQ(expected.size(), requests.size());
    EXPECT_GT(stats.sparse_queries, 0u);
    EXPECT_LT(stats.sparse_pages_read, stats.sparse_pages_kept);
    for (const bool tight : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "pages of " << page_tokens << ", few: " << tight);
      EngineOptions crowd = alone;
      crowd.prefix_cache = true;
      crowd.chunk_tokens = 200;
      if (tight) crowd.kv_cache_bytes = stats.page_bytes * 2000 / page_tokens;
      EngineStats crowd_stats;
      const std::vector<Answer> answers = run(path, {}, crowd, requests, true, crowd_stats);
      ASSERT_EQ(answers.size(), expected.size());
      for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "request " << i;
      EXPECT_GT(crowd_stats.cached_tokens, 0u);
    }
  }
  fs::remove(path);
}

// What selected pages stays with its request: others, which read all or go on with its answer, compute those tokens.
TEST_P(EngineSelection, TheCacheGivesNobodyTokensThatSelected) {
  const fs::path path = temp_config("selection_cache_" + GetParam());
  ASSERT_TRUE(write_file_atomic(path, config_of(GetParam())).ok());
  const std::vector<GenerateRequest> pool = selecting_requests();
  std::vector<GenerateRequest> requests(4, pool[3]);
  requests[0].sparse_prompt_tokens = 600;
  requests[0].sampling.max_tokens = 60;
  requests[1].sparse = "off";
  EngineOptions options = selecting_options("lserve");
  options.prefix_cache = false;
  EngineStats stats;
  const std::vector<Answer> first = run(path, {}, options, {requests[0]}, false, stats);
  ASSERT_EQ(first.size(), 1u);
  for (const std::size_t next : {2, 3}) {
    Tokens& prompt = requests[next].prompt;
    prompt.insert(prompt.end(), first[0].tokens.begin(), first[0].tokens.end());
    prompt.push_back(1);
  }
  requests[3].sparse = "off";
  const std::vector<Answer> expected = run(path, {}, options, requests, false, stats);
  options.prefix_cache = true;
  EngineStats cached;
  const std::vector<Answer> answers = run(path, {}, options, requests, false, cached);
  ASSERT_EQ(answers.size(), requests.size());
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "request " << i;
  EXPECT_GT(cached.cached_tokens, 900u);  // what read all is still found
  fs::remove(path);
}

TEST_P(EngineSelection, UnderBudgetTheBitsOfDense) {
  const fs::path path = temp_config("under_budget_" + GetParam());
  ASSERT_TRUE(write_file_atomic(path, config_of(GetParam())).ok());
  std::vector<GenerateRequest> requests = selecting_requests();
  for (GenerateRequest& request : requests) request.sparse_prompt_tokens = 0;
  EngineOptions options = selecting_options("off");
  options.batch_invariant = false;
  EngineStats stats;
  const std::vector<Answer> dense = run(path, {}, options, requests, false, stats);
  options.sparse = "quest";
  options.kv_budget = "1024";
  EXPECT_EQ(run(path, {}, options, requests, false, stats), dense);
  EXPECT_EQ(stats.sparse_queries, 0u);
  fs::remove(path);
}

TEST(EngineSelectionOptions, SayWhyTheyAreRefused) {
  const fs::path path = temp_config("selection_refused");
  ASSERT_TRUE(write_file_atomic(path, config_of("llama31")).ok());
  const auto refused = [&](const EngineOptions& options, const GenerateRequest& request, const std::string& part) {
    auto engine = create_engine(path, {}, options);
    const Status status =
        engine.ok() ? (*engine)->submit(request, [](const GenerationEvent&) {}).status() : engine.status();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  };
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  refused(selecting_options("best"), request, "sparse is \"best\"");
  EngineOptions options = selecting_options("quest");
  options.page_tokens = 8;
  refused(options, request, "page_tokens");
  options = selecting_options("quest");
  options.kv_budget = "T";
  refused(options, request, "\"T\"");
  options = selecting_options("quest");
  options.dense_layers = {99};
  refused(options, request, "dense layer 99");
  request.sparse = "lserve";
  refused(selecting_options("off"), request, "start it with --sparse lserve");
  refused(selecting_options("mean-dev"), request, "keeps the statistics of \"mean-dev\"");
  request.sparse = "off";
  request.kv_budget = "512";
  refused(selecting_options("quest"), request, "selects no pages");
  request = {};
  request.prompt = {1, 2, 3};
  refused(selecting_options("fovea"), request, "needs key_sketch.json");
  request.sparse_prompt_tokens = 2;
  refused(selecting_options("off"), request, "sparse_prompt_tokens is 2");
  request.sparse = "off";
  refused(selecting_options("quest"), request, "sparse_prompt_tokens is 2");
  ASSERT_TRUE(write_file_atomic(path, config_of("mistral")).ok());
  refused(selecting_options("quest"), request, "have a window");
  fs::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Families, EngineSelection, ::testing::Values("llama31", "gemma2"),
                         [](const auto& info) { return info.param; });
}  // namespace
}  // namespace fovea
