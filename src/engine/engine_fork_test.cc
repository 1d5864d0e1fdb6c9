// An engine in a child of fork(): what needs its threads is refused at once, texts go on, and an engine of its own
// works.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <future>
#include <thread>

#include "fovea/engine.h"
#include "fovea/engine_view.h"

namespace fovea {
namespace {

using Tokens = std::vector<std::int32_t>;

EngineOptions options() {
  EngineOptions options;
  options.max_context = 256;
  options.num_threads = 2;
  return options;
}

// Five tokens, or nothing where the engine refuses.
Tokens answer(Engine& engine) {
  GenerateRequest request;
  request.prompt = *engine.encode("The code of the door is", true);
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 5;
  request.sampling.ignore_eos = true;
  Tokens tokens;
  std::promise<void> ended;
  const auto id = engine.submit(request, [&](const GenerationEvent& event) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    if (event.finish != FinishReason::kNone) ended.set_value();
  });
  if (id.ok()) ended.get_future().wait();
  return tokens;
}

// The exit status of a child that runs work(); -1: it hangs, and is ended.
template <typename Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int state = 0;
  while (::waitpid(child, &state, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &state, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

// Which of the promises about a parent's engine does not hold, from 1; 0: all hold.
int broken_promise(std::unique_ptr<Engine> engine, const std::string& text) {
  GenerateRequest request;
  request.prompt = {1};
  const auto refused = engine->submit(request, [](const GenerationEvent&) {});
  if (refused.status().code() != StatusCode::kUnsupported) return 1;
  if (refused.status().message().find("fork()") == std::string::npos) return 2;
  if (engine->check(request, nullptr).code() != StatusCode::kUnsupported) return 3;
  if (engine->compile_grammar({GrammarKind::kRegex, "a"}).status().code() != StatusCode::kUnsupported) return 4;
  if (engine->stats().healthy) return 5;
  int views = 0;
  engine->view([&](const EngineView& view) { views += view.stats.healthy ? 2 : 1; });
  if (views != 1) return 6;
  engine->cancel(1);
  engine->flush_cache();
  if (!engine->explain_plan_text().empty()) return 7;
  if (engine->decode(*engine->encode(text, false), true) != text) return 8;
  engine->shutdown(1.0);
  engine.reset();
  return 0;
}

TEST(EngineFork, AChildIsRefusedWhatNeedsThreads) {
  auto engine = Engine::create(options());
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const Tokens expected = answer(**engine);
  ASSERT_EQ(expected.size(), 5u);
  EXPECT_EQ(in_child([&] { return broken_promise(std::move(*engine), "some text"); }), 0);
  EXPECT_EQ(answer(**engine), expected);  // the parent's goes on
}

TEST(EngineFork, WhateverItsThreadDoesThen) {
  auto engine = Engine::create(options());
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  GenerateRequest request;
  request.prompt = {1};
  request.sampling.ignore_eos = true;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE((*engine)->submit(request, [](const GenerationEvent&) {}).ok());
    EXPECT_EQ(in_child([&] { return broken_promise(std::move(*engine), "text"); }), 0);
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not let a child of a process with threads start any
TEST(EngineFork, AChildMakesItsOwn) {
  auto engine = Engine::create(options());
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const Tokens expected = answer(**engine);
  EXPECT_EQ(in_child([&] {
              auto own = Engine::create(options());
              return own.ok() && answer(**own) == expected ? 0 : 1;
            }),
            0);
}
#endif

}  // namespace
}  // namespace fovea
