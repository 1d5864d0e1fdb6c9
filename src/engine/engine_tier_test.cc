// KV beyond memory: prefixes that left the cache, or the process, come back with the bits they had, whatever the layers
// keep and whatever the disk does.
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <future>

#include "engine/engine_model_test_util.h"
#include "engine/store/store_test_util.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

struct Subject {
  const char* name;
  const char* golden;
  std::optional<HeadProfile> streaming;
  DType kv = DType::kBF16;
  bool rotated = false;
};

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

// Prompts that share nothing, of 500 tokens, and their first halves with other ends.
Tokens prompt_of(int which, std::size_t tokens = 500) {
  PhiloxRng rng(static_cast<std::uint64_t>(40 + which));
  Tokens prompt;
  while (prompt.size() < tokens) prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
  return prompt;
}

class Tier : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    path_ = temp_config("tier");
    ASSERT_TRUE(write_file_atomic(path_, config_of(GetParam().golden)).ok());
    options_.batch_invariant = true;
    options_.chunk_tokens = 128;
    options_.num_threads = 1;
    options_.itl_target_ms = 0.0f;
    options_.kv_dtype = GetParam().kv;
    options_.kv_rotated = GetParam().rotated;
    options_.kv_cache_bytes = 16 << 20;
  }
  void TearDown() override { fs::remove(path_); }

  std::unique_ptr<EngineCore> start(const EngineOptions& options) const {
    auto engine = create_engine(path_, GetParam().streaming, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }
  // Options with a cache that holds one prompt, and little more.
  EngineOptions tight() const {
    EngineOptions options = options_;
    const auto roomy = start(options);
    options.kv_cache_bytes = 0;
    for (const PoolView& pool : pools(*roomy)) options.kv_cache_bytes += pool.page_bytes * 40;
    options.max_running = 1;  // pools of layers with a window are as large as running requests need
    options.max_context = 600;
    return options;
  }
  static std::vector<PoolView> pools(EngineCore& engine) {
    std::promise<std::vector<PoolView>> pools;
    engine.view([&](const EngineView& view) { pools.set_value(view.pools); });
    return pools.get_future().get();
  }
  static Answer ask(EngineCore& engine, const Tokens& prompt) {
    GenerateRequest request;
    request.prompt = prompt;
    request.sampling.max_tokens = 8;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.sampling.logprobs = 0;
    return fovea::ask(engine, request);
  }
  Answer expected(const Tokens& prompt) const {
    EngineOptions options = options_;
    options.prefix_cache = false;
    return ask(*start(options), prompt);
  }

  fs::path path_;
  EngineOptions options_;
};

TEST_P(Tier, SpilledPrefixesComeBack) {
  EngineOptions options = tight();
  const std::vector<Answer> answers = {expected(prompt_of(0)), expected(prompt_of(1)), expected(prompt_of(2))};
  options.kv_spill_bytes = 32 << 20;
  const auto engine = start(options);
  ASSERT_NE(engine, nullptr);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(::testing::Message() << "round " << round << ", prompt " << i);
      const Answer answer = ask(*engine, prompt_of(i));
      EXPECT_TRUE(answer == answers[i]);
      EXPECT_GE(answer.cached, round == 0 ? 0 : 480);
      const Status intact = engine->check_integrity();
      EXPECT_TRUE(intact.ok()) << intact.message();
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.kv_pages_spilled, 60u);
  EXPECT_GT(stats.kv_pages_restored, 60u);
  EXPECT_EQ(stats.kv_store_errors, 0u);
  EXPECT_GT(stats.kv_host_bytes, 0);
  EXPECT_LE(stats.kv_host_bytes, options.kv_spill_bytes);
  engine->flush_cache();
  EXPECT_EQ(engine->stats().kv_host_bytes, 0);
  EXPECT_EQ(engine->stats().pages_free, engine->stats().pages_total);
  EXPECT_EQ(ask(*engine, prompt_of(0)).cached, 0);
}

TEST_P(Tier, ARestartKeepsPrefixes) {
  const TempFolder temp;
  EngineOptions options = options_;
  options.kv_store = temp.path();
  const std::vector<Answer> answers = {expected(prompt_of(0)), expected(prompt_of(1))};
  {
    const auto engine = start(options);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(ask(*engine, prompt_of(i)) == answers[i]);
  }
  for (int again = 0; again < 2; ++again) {
    const auto engine = start(options);
    for (int i = 0; i < 2; ++i) {
      const Answer answer = ask(*engine, prompt_of(i));
      EXPECT_TRUE(answer == answers[i]);
      EXPECT_GE(answer.cached, 480);
    }
    // A prompt that goes another way after 20 pages has those.
    Tokens other = prompt_of(0);
    std::fill(other.begin() + 330, other.end(), 5);
    EXPECT_TRUE(ask(*engine, other) == expected(other));
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.kv_pages_read, 0u);
    EXPECT_EQ(stats.kv_store_errors, 0u);
    EXPECT_TRUE(engine->check_integrity().ok());
  }
  // What KV depends on is part of its name.
  EngineOptions paged = options;
  paged.page_tokens = 32;
  EXPECT_EQ(ask(*start(paged), prompt_of(0)).cached, 0);
  // A flush is for good.
  start(options)->flush_cache();
  EXPECT_EQ(ask(*start(options), prompt_of(1)).cached, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Tier,
                         ::testing::Values(Subject{"plain", "llama31", {}}, Subject{"int4", "qwen3", {}, DType::kI4},
                                           Subject{"int4_hadamard", "llama31", {}, DType::kI4, true},
                                           Subject{"windows", "gemma2", {}},
                                           Subject{"streaming", "llama31", profile(100, 0, {{0, 1}, {1, 0}})},
                                           Subject{"streaming_int8", "llama31", profile(100, 0, {{0, 1}}), DType::kI8}),
                         [](const auto& info) { return info.param.name; });

class Store : public Tier {
 protected:
  // A folder with prompt 0 in it; the path of its one segment.
  fs::path fill(const EngineOptions& options) const {
    (void)ask(*start(options), prompt_of(0));
    fs::path found;
    for (const auto& entry : fs::recursive_directory_iterator(options.kv_store)) {
      if (entry.path().extension() == ".kv") found = entry.path();
    }
    EXPECT_FALSE(found.empty());
    return found;
  }
};

TEST_P(Store, DamagedFilesCostARecomputation) {
  const TempFolder temp;
  EngineOptions options = options_;
  options.kv_store = temp.path();
  const Answer answer = expected(prompt_of(0));
  // Magic, version, space, counts, hashes; the table; the tokens; the first and the last page.
  const fs::path probe = fill(options);
  const auto size = static_cast<std::int64_t>(fs::file_size(probe));
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{8}, std::int64_t{12}, std::int64_t{16}, std::int64_t{32},
                                std::int64_t{40}, std::int64_t{48}, std::int64_t{56}, std::int64_t{64},
                                std::int64_t{100}, std::int64_t{120}, size / 2, size - 1}) {
    SCOPED_TRACE(::testing::Message() << "byte " << at << " of " << size);
    const fs::path path = fill(options);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 0x55));
    }
    const auto engine = start(options);
    EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
    EXPECT_GT(engine->stats().kv_store_errors, 0u);
    EXPECT_TRUE(engine->check_integrity().ok());
    engine->flush_cache();
  }
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{63}, size / 2, size - 1}) {
    SCOPED_TRACE(::testing::Message() << length << " bytes of " << size);
    fs::resize_file(fill(options), static_cast<std::uintmax_t>(length));
    const auto engine = start(options);
    EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
    EXPECT_GT(engine->stats().kv_store_errors, 0u);
    engine->flush_cache();
  }
  {  // while it is in use
    const fs::path path = fill(options);
    const auto engine = start(options);
    fs::remove(path);
    EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
  }
}

TEST_P(Store, AFullDiskCostsNothingButTheStore) {
  const TempFolder temp;
  EngineOptions options = options_;
  options.kv_store = temp.path();
  const Answer answer = expected(prompt_of(0));
  {
    const auto engine = start(options);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 16 << 10;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
    for (int i = 0; i < 2000 && engine->stats().kv_store_errors == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      (void)engine->check_integrity();  // publishes what has happened meanwhile
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_GT(engine->stats().kv_store_errors, 0u);
    EXPECT_EQ(engine->stats().kv_pages_written, 0u);
    EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
    EXPECT_TRUE(engine->check_integrity().ok());
  }
  const auto engine = start(options);
  EXPECT_TRUE(ask(*engine, prompt_of(0)) == answer);
  EXPECT_EQ(engine->stats().kv_store_errors, 0u);
}

TEST_P(Store, AFolderThatCannotBeUsedIsALineInTheLog) {
  const TempFolder temp;
  std::ofstream(temp.path() + "/file") << "x";
  EngineOptions options = options_;
  options.kv_store = temp.path() + "/file";
  const auto engine = start(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(ask(*engine, prompt_of(0)) == expected(prompt_of(0)));
  EXPECT_GT(engine->stats().kv_store_errors, 0u);
}

TEST_P(Store, TheFolderStaysWithinItsBytes) {
  const TempFolder temp;
  EngineOptions options = options_;
  options.page_tokens = 256;
  options.kv_store = temp.path();
  options.kv_store_bytes = 64 << 20;
  options.kv_dtype = DType::kF32;
  options.kv_cache_bytes = 128 << 20;
  options.chunk_tokens = 2048;
  const auto engine = start(options);
  std::int64_t page_bytes = pools(*engine)[0].page_bytes;
  int asked = 0;  // a page each: longer prompts would be attention's work
  for (; asked * page_bytes < (100 << 20); ++asked) (void)ask(*engine, prompt_of(100 + asked, 260));
  for (int i = 0; i < 4000 && engine->stats().kv_pages_written < static_cast<std::uint64_t>(asked); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (void)engine->check_integrity();
  }
  EXPECT_LE(engine->stats().kv_store_bytes, options.kv_store_bytes);
  EXPECT_GT(engine->stats().kv_store_bytes, options.kv_store_bytes / 3);
}

// Many prompts with common beginnings through a small cache, a small host tier and a folder, some cancelled.
TEST_P(Store, AStormHasTheAnswersOfQuiet) {
  const TempFolder temp;
  std::vector<GenerateRequest> requests;
  std::vector<std::size_t> cancel_at;
  PhiloxRng rng(3);
  for (int i = 0; i < 24; ++i) {
    GenerateRequest request;
    request.prompt = prompt_of(static_cast<int>(rng.next_below(4)));
    request.prompt.resize(100 + rng.next_below(400));
    for (int n = 0; n < 20; ++n) request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    request.sampling.max_tokens = 6;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.sampling.logprobs = 0;
    request.cache_salt = i % 5 == 0 ? "other" : "";
    requests.push_back(request);
    cancel_at.push_back(0);
  }
  EngineOptions quiet = options_;
  quiet.prefix_cache = false;
  EngineStats stats;
  const std::vector<Answer> expected_answers = run(path_, {}, quiet, requests, false, stats);
  EngineOptions options = tight();
  options.max_running = 4;
  options.kv_store = temp.path();
  options.kv_spill_bytes = 600 << 10;
  std::uint64_t restored = 0;
  for (int round = 0; round < 2; ++round) {
    const std::vector<Answer> answers = run(path_, {}, options, requests, true, stats);
    ASSERT_EQ(answers.size(), expected_answers.size());
    for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected_answers[i]) << "request " << i;
    EXPECT_EQ(stats.kv_store_errors, 0u);
    restored += stats.kv_pages_restored;
    for (std::size_t i = 0; i < cancel_at.size(); i += 3) cancel_at[i] = 2;
    (void)run(path_, {}, options, requests, true, stats, cancel_at);
  }
  EXPECT_GT(restored, 0u);
}

INSTANTIATE_TEST_SUITE_P(Plain, Store, ::testing::Values(Subject{"plain", "llama31", {}}),
                         [](const auto& info) { return info.param.name; });

TEST(TierOptions, WhatDoesNotGoTogetherIsRefused) {
  EngineOptions options;
  options.kv_spill_bytes = 1 << 30;
  EXPECT_TRUE(check_engine_options(options).ok());
  options.sparse = "quest";
  EXPECT_EQ(check_engine_options(options).code(), StatusCode::kUnsupported);
  options.sparse = "off";
  options.prefix_cache = false;
  EXPECT_EQ(check_engine_options(options).code(), StatusCode::kInvalidArgument);
  options = {};
  options.kv_spill_bytes = -1;
  EXPECT_EQ(check_engine_options(options).code(), StatusCode::kInvalidArgument);
  options = {};
  options.kv_store = "/tmp/x";
  options.kv_store_bytes = 1;
  EXPECT_EQ(check_engine_options(options).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea
