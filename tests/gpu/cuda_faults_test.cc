// One call of the driver or of cuBLASLt that fails, whichever it is: every call that an engine on a CUDA device makes
// while it starts and while it serves fails once, on a device without a GPU. Who asks is told what failed, or gets the
// answer that it gets without it; nothing waits for ever, and nothing stays behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

constexpr int kFailed = 13;

class CudaFaults : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    options_.batch_invariant = true;  // so that neighbours change no bit
    options_.itl_target_ms = 0.0f;
    options_.chunk_tokens = 48;  // the longest prompt takes two chunks
    options_.max_context = 128;
    options_.kv_cache_bytes = 1 << 20;
    requests_.resize(3);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].prompt.resize(20 + 15 * i);
      requests_[i].sampling.max_tokens = 5;
      requests_[i].sampling.has_seed = true;
      requests_[i].sampling.seed = i;
    }
    requests_[1].n = 2;  // which draw, and copy a page
    requests_[1].sampling.temperature = 0.8f;
    requests_[2].sampling.logprobs = 1;  // the host looks at all logits
  }

  // How often each function was called. Where giving back fails, nothing is left to do.
  static std::map<std::string, int> calls() {
    std::map<std::string, int> all = fake::state().calls;
    std::erase_if(all, [](const auto& call) {
      const std::string& name = call.first;
      return name.find("Free") != name.npos || name.find("Destroy") != name.npos || name.find("Release") != name.npos ||
             name.find("Unload") != name.npos;
    });
    return all;
  }

  struct Served {
    std::vector<Tokens> tokens;  // by choice
    std::vector<Status> errors;
  };
  Served serve(EngineCore& engine) {
    Served served;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t open = 0;
    for (const GenerateRequest& request : requests_) open += static_cast<std::size_t>(request.n);
    served.tokens.resize(open);
    served.errors.resize(open);
    std::size_t first = 0;
    for (const GenerateRequest& request : requests_) {
      const auto id = engine.submit(request, [&, first](const GenerationEvent& event) {
        const std::lock_guard lock(mutex);
        const std::size_t at = first + static_cast<std::size_t>(event.choice);
        served.tokens[at].insert(served.tokens[at].end(), event.tokens.begin(), event.tokens.end());
        if (event.finish == FinishReason::kNone) return;
        EXPECT_TRUE(event.finish == FinishReason::kLength || event.finish == FinishReason::kError);
        served.errors[at] = event.finish == FinishReason::kError ? event.error : ok_status();
        EXPECT_EQ(event.finish == FinishReason::kError, !served.errors[at].ok());
        --open;
        changed.notify_all();
      });
      EXPECT_TRUE(id.ok()) << id.status().to_string();
      first += static_cast<std::size_t>(request.n);
    }
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return open == 0; })) << "somebody waits";
    lock.unlock();
    EXPECT_TRUE(engine.check_integrity().ok()) << engine.check_integrity().to_string();
    engine.flush_cache();
    EXPECT_TRUE(engine.check_integrity().ok());
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.kv_bytes_in_use, 0);
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_TRUE(stats.healthy);
    return served;
  }

  // Whoever has no error has the answer of a device that does not fail, and whoever has one what was computed before.
  static void expect_right(const Served& served, const Served& expected, const std::string& says) {
    for (std::size_t i = 0; i < expected.tokens.size(); ++i) {
      const Tokens& all = expected.tokens[i];
      if (served.errors[i].ok()) {
        EXPECT_EQ(served.tokens[i], all) << "choice " << i;
        continue;
      }
      EXPECT_THAT(served.errors[i].message(), HasSubstr(says));
      ASSERT_LE(served.tokens[i].size(), all.size());
      EXPECT_TRUE(std::equal(served.tokens[i].begin(), served.tokens[i].end(), all.begin())) << "choice " << i;
    }
  }

  // What messages call it: without the driver's versions.
  static std::string name_of(const std::string& function) {
    return function.substr(0, function.find("_v")).substr(0, 9);
  }
};

// Each call that fails while an engine is made: it is refused and says why, or does without; nothing stays behind.
TEST_F(CudaFaults, EveryCallOfTheStart) {
  const auto start = [&] { return create_engine(path_, {}, options_).status(); };
  ASSERT_TRUE(start().ok());
  fake::state().calls.clear();
  const fake::Alive before = fake::state().alive;
  ASSERT_TRUE(start().ok());
  ASSERT_TRUE(fake::state().alive == before);
  int refused = 0;
  for (const auto& [function, count] : calls()) {
    for (int call = 1; call <= count; call += 1 + count / 40) {
      SCOPED_TRACE(::testing::Message() << function << ", call " << call << " of " << count);
      fake::state().calls.clear();
      fake::state().once = {{function, {call, kFailed}}};
      const Status status = start();
      fake::state().once.clear();
      EXPECT_TRUE(fake::state().alive == before) << "something outlives the engine";
      if (status.ok()) continue;
      ++refused;
      EXPECT_FALSE(status.message().empty());
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_TRUE(start().ok());
}

// Each call of the first steps of an engine: kernels meet their shapes for the first time, and graphs are captured.
TEST_F(CudaFaults, EveryCallOfFirstSteps) {
  for (const bool late : {false, true}) {
    prepare_cuda("llama31");
    fake::state().late = late;
    Served expected;
    std::map<std::string, int> all;
    {
      auto engine = create_engine(path_, {}, options_);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      fake::state().calls.clear();
      expected = serve(**engine);
      all = calls();
    }
    for (const Status& error : expected.errors) ASSERT_TRUE(error.ok()) << error.to_string();
    const fake::Alive before = fake::state().alive;  // with the kernels, which the process keeps
    int failed = 0, tried = 0;
    for (const auto& [function, count] : all) {
      const int step = 1 + count / 20;  // launches are many and alike
      for (int call = 1; call <= count; call += step) {
        SCOPED_TRACE(::testing::Message() << function << ", call " << call << " of " << count << ", late " << late);
        auto engine = create_engine(path_, {}, options_);
        ASSERT_TRUE(engine.ok()) << engine.status().to_string();
        fake::state().calls.clear();
        fake::state().once = {{function, {call, kFailed}}};
        const Served served = serve(**engine);
        fake::state().once.clear();
        expect_right(served, expected, name_of(function));
        failed += std::any_of(served.errors.begin(), served.errors.end(), [](const Status& s) { return !s.ok(); });
        ++tried;
        // The same engine goes on.
        const Served again = serve(**engine);
        EXPECT_EQ(again.tokens, expected.tokens);
        for (const Status& error : again.errors) EXPECT_TRUE(error.ok()) << error.to_string();
      }
      EXPECT_TRUE(fake::state().alive == before) << function;
    }
    EXPECT_GT(failed, 100) << "of " << tried;
  }
}

}  // namespace
}  // namespace fovea
