// How much of the prompts is left to read, as stats() tells it while they are read.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "fovea/engine.h"

namespace fovea {
namespace {

TEST(EnginePending, PromptTokensCountDownToZero) {
  EngineOptions options;
  options.load_format = "dummy";
  options.chunk_tokens = 64;
  options.kv_cache_bytes = std::int64_t{64} << 20;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t at_first_token = -1;
  bool ended = false;
  GenerateRequest request;
  request.prompt.assign(200, 20);
  request.sampling.max_tokens = 2;
  request.sampling.ignore_eos = true;
  const auto id = (*engine)->submit(request, [&](const GenerationEvent& event) {
    const std::lock_guard lock(mutex);
    // Counted when a step has ended: the chunk that gave this token is still among them.
    if (at_first_token < 0) at_first_token = (*engine)->stats().prompt_tokens_pending;
    ended = event.finish != FinishReason::kNone;
    changed.notify_one();
  });
  ASSERT_TRUE(id.ok()) << id.status().message();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended; });
  lock.unlock();
  EXPECT_GT(at_first_token, 0);
  EXPECT_LE(at_first_token, 200);
  (*engine)->flush_cache();  // returns between steps
  EXPECT_EQ((*engine)->stats().prompt_tokens_pending, 0);
}

TEST(EnginePending, WhatIsCancelledIsNotLeft) {
  EngineOptions options;
  options.load_format = "dummy";
  options.chunk_tokens = 64;
  options.kv_cache_bytes = std::int64_t{64} << 20;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  GenerateRequest request;
  request.prompt.assign(2000, 20);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    request.prompt[0] = 20 + i;
    const auto id = (*engine)->submit(request, [](const GenerationEvent&) {});
    ASSERT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
  }
  for (const RequestId id : ids) (*engine)->cancel(id);
  (*engine)->flush_cache();
  EXPECT_EQ((*engine)->stats().prompt_tokens_pending, 0);
}

}  // namespace
}  // namespace fovea
