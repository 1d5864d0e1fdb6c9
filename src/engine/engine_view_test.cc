// Views of an engine with a small model of random weights. A callback that waits holds the engine's thread inside of a
// step, so that what a view finds does not depend on who is faster.
#include "fovea/engine_view.h"

#include <latch>
#include <map>
#include <set>

#include "engine/engine_model_test_util.h"

namespace fovea {
namespace {

class EngineViewTest : public ::testing::Test {
 protected:
  void start(std::int32_t num_threads = 1, std::int32_t step_log = 0) {
    const std::filesystem::path path = temp_config("engine_view");
    ASSERT_TRUE(write_file_atomic(path, config_of("llama31")).ok());
    EngineOptions options;
    options.num_threads = num_threads;
    options.step_log = step_log;
    options.kv_cache_bytes = 16 << 20;
    auto created = create_engine(path, std::nullopt, options);
    std::filesystem::remove(path);
    ASSERT_TRUE(created.ok()) << created.status().message();
    engine_ = std::move(*created);
  }
  // What the engine shows between two steps.
  EngineView view() {
    const Asked asked = ask();
    asked->done.wait();
    return asked->view;
  }
  struct Answer {
    EngineView view;
    std::latch done{1};
  };
  using Asked = std::shared_ptr<Answer>;
  Asked ask() {
    auto asked = std::make_shared<Answer>();
    engine_->view([asked](const EngineView& view) {
      asked->view = view;
      asked->done.count_down();
    });
    return asked;
  }
  // Submits the requests so that the engine takes all of them in before its next step: behind one that holds it until
  // then. `prompt`: that one's.
  std::vector<RequestId> submit_together(Tokens prompt, std::vector<GenerateRequest> requests,
                                         const std::function<EventCallback(std::size_t)>& callback) {
    // Shared with the callback, which may still look at them when this has returned.
    const auto held = std::make_shared<std::latch>(1), submitted = std::make_shared<std::latch>(1);
    EXPECT_TRUE(engine_
                    ->submit(request(std::move(prompt), 1),
                             [held, submitted](const GenerationEvent&) {
                               held->count_down();
                               submitted->wait();
                             })
                    .ok());
    held->wait();
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine_->submit(std::move(requests[i]), callback(i));
      EXPECT_TRUE(id.ok()) << id.status().message();
      ids.push_back(id.ok() ? *id : 0);
    }
    submitted->count_down();
    return ids;
  }
  static GenerateRequest request(Tokens prompt, std::int32_t max_tokens) {
    GenerateRequest out;
    out.prompt = std::move(prompt);
    out.sampling.max_tokens = max_tokens;
    out.sampling.ignore_eos = true;
    out.sampling.temperature = 0.0f;
    return out;
  }
  static Tokens tokens(std::int32_t count, std::int32_t first) {
    Tokens out(static_cast<std::size_t>(count));
    for (std::int32_t i = 0; i < count; ++i) out[static_cast<std::size_t>(i)] = (first + i * 7) % 128;
    return out;
  }

  std::unique_ptr<EngineCore> engine_;
};

TEST_F(EngineViewTest, OfAnIdleEngine) {
  start();
  const EngineView idle = view();
  EXPECT_TRUE(idle.stats.healthy);
  EXPECT_GT(idle.seconds, 0.0);
  EXPECT_EQ(idle.page_tokens, 16);
  EXPECT_TRUE(idle.requests.empty());
  EXPECT_TRUE(idle.prefixes.empty());
  EXPECT_EQ(idle.timeline.workers, 0);
  ASSERT_EQ(idle.pools.size(), 1u);
  EXPECT_GT(idle.pools[0].total, 0);
  EXPECT_EQ(idle.pools[0].free, idle.pools[0].total);
}

TEST_F(EngineViewTest, OfRequestsThatShareAPrefix) {
  start(2);
  // Three questions about a document that is in the cache. The last one's fifth token holds the engine until a view was
  // asked for.
  const Tokens document = tokens(320, 1);  // 20 pages
  constexpr int kQuestions = 3;
  std::vector<GenerateRequest> questions;
  for (int i = 0; i < kQuestions; ++i) {
    Tokens prompt = document;
    for (const std::int32_t token : tokens(20, 2 + i)) prompt.push_back(token);
    questions.push_back(request(std::move(prompt), 1000));
  }
  std::latch held(1), asked(1), ended(kQuestions);
  int events = 0;
  const std::vector<RequestId> ids =
      submit_together(document, std::move(questions), [&](std::size_t i) -> EventCallback {
        return [&, i](const GenerationEvent& event) {
          if (i == kQuestions - 1 && ++events == 5) {
            held.count_down();
            asked.wait();
          }
          if (event.finish != FinishReason::kNone) ended.count_down();
        };
      });
  held.wait();
  const Asked answer = ask();
  asked.count_down();
  answer->done.wait();
  const EngineView& seen = answer->view;
  for (const RequestId id : ids) engine_->cancel(id);
  ended.wait();

  EXPECT_EQ(seen.stats.running, kQuestions);
  ASSERT_EQ(seen.requests.size(), static_cast<std::size_t>(kQuestions));
  std::set<std::uint64_t> nodes;
  for (const PrefixView& node : seen.prefixes) {
    EXPECT_TRUE(node.parent == 0 ? node.first_page == 0 : nodes.contains(node.parent)) << node.id;
    EXPECT_GT(node.pages, 0);
    nodes.insert(node.id);
  }
  EXPECT_GE(seen.prefixes.size(), 4u);  // the document, and what follows it in each
  EXPECT_EQ(seen.prefixes[0].sequences, kQuestions);
  EXPECT_EQ(seen.prefixes[0].pages, 20);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const RequestView& request = seen.requests[i];
    EXPECT_EQ(request.id, ids[i]);
    EXPECT_TRUE(request.running);
    EXPECT_GE(request.seconds, 0.0);
    EXPECT_EQ(request.prompt_tokens, 340);
    EXPECT_EQ(request.cached_tokens, 320);
    EXPECT_GE(request.generated_tokens, 4);
    EXPECT_EQ(request.computed_tokens, request.prompt_tokens + request.generated_tokens - 1);
    EXPECT_EQ(request.pages, (request.computed_tokens + 15) / 16);
    EXPECT_EQ(request.shared_pages, 20);
    EXPECT_EQ(request.max_tokens, 1000);
    EXPECT_TRUE(nodes.contains(request.prefix));
  }
  const PoolView& pool = seen.pools[0];
  EXPECT_EQ(pool.used + pool.cached + pool.free, pool.total);
  EXPECT_EQ(pool.shared, 20);

  const TimelineView& plan = seen.timeline;
  EXPECT_EQ(plan.workers, 2);
  EXPECT_LT(plan.kv_bytes, plan.kv_bytes_unshared);
  EXPECT_EQ(plan.items_left_out, 0u);
  ASSERT_FALSE(plan.items.empty());
  std::vector<std::uint64_t> time(2, 0);
  std::set<RequestId> alone;
  bool together = false;
  for (const TimelineItem& item : plan.items) {
    ASSERT_TRUE(item.worker == 0 || item.worker == 1);
    std::uint64_t& now = time[static_cast<std::size_t>(item.worker)];
    EXPECT_EQ(item.begin, now);
    now += item.cost;
    if (item.request == 0) {
      EXPECT_EQ(item.requests, kQuestions);
      together = true;
    } else {
      EXPECT_EQ(item.requests, 1);
      alone.insert(item.request);
    }
  }
  EXPECT_TRUE(together);
  EXPECT_EQ(alone, std::set<RequestId>(ids.begin(), ids.end()));
  EXPECT_EQ(time[0] + time[1], plan.cost);
  EXPECT_EQ(std::max(time[0], time[1]), plan.longest);

  const EngineView after = view();
  EXPECT_TRUE(after.requests.empty());
  EXPECT_EQ(after.pools[0].used, 0);
  EXPECT_GT(after.pools[0].cached, 20);
  for (const PrefixView& node : after.prefixes) EXPECT_EQ(node.sequences, 0);
  engine_.reset();
}

TEST_F(EngineViewTest, LeavesOutWhatIsTooMuch) {
  start();
  constexpr std::size_t kRequests = 450;
  std::vector<GenerateRequest> requests;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(kRequests); ++i) {
    Tokens prompt(17, i % 100);  // a page of its own
    prompt[1] = i / 100;
    requests.push_back(request(std::move(prompt), 1));
  }
  std::latch held(1), asked(1), ended(kRequests);
  submit_together({1, 2, 3}, std::move(requests), [&](std::size_t i) -> EventCallback {
    return [&, i](const GenerationEvent& event) {
      if (i == 0) {
        held.count_down();
        asked.wait();
      }
      if (event.finish != FinishReason::kNone) ended.count_down();
    };
  });
  held.wait();
  const Asked answer = ask();
  asked.count_down();
  answer->done.wait();
  const EngineView& busy = answer->view;
  ended.wait();
  EXPECT_EQ(busy.requests.size(), EngineView::kMaxRequests);
  EXPECT_EQ(busy.requests.size() + busy.requests_left_out,
            static_cast<std::size_t>(busy.stats.running + busy.stats.queued));

  const EngineView after = view();
  EXPECT_EQ(after.prefixes.size(), EngineView::kMaxPrefixes);
  EXPECT_EQ(after.prefixes_left_out, kRequests - EngineView::kMaxPrefixes);
  engine_.reset();
}

TEST_F(EngineViewTest, MayBeAskedForByManyAtAnyTime) {
  start();
  std::latch ended(4);
  std::vector<std::thread> askers;
  std::atomic<int> answers = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine_
                    ->submit(request(tokens(40 + i, i), 10),
                             [&](const GenerationEvent& event) {
                               if (event.finish != FinishReason::kNone) ended.count_down();
                             })
                    .ok());
    askers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        const EngineView seen = view();
        EXPECT_LE(seen.requests.size(), 4u);
        EXPECT_EQ(seen.pools[0].used + seen.pools[0].cached + seen.pools[0].free, seen.pools[0].total);
        ++answers;
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  ended.wait();
  engine_.reset();
  EXPECT_EQ(answers, 80);
}

TEST_F(EngineViewTest, AfterShutdownIsStatsAlone) {
  start();
  engine_->shutdown(0.0);
  bool called = false;
  engine_->view([&](const EngineView& view) {
    called = true;
    EXPECT_GT(view.stats.pages_total, 0);
    EXPECT_TRUE(view.pools.empty());
  });
  EXPECT_TRUE(called);
}

TEST_F(EngineViewTest, OfWhatTheLatestStepsDid) {
  start(1, 4);
  EXPECT_TRUE(view().spans.empty());
  std::latch ended(1);
  ASSERT_TRUE(engine_
                  ->submit(request(tokens(20, 1), 12),
                           [&](const GenerationEvent& event) {
                             if (event.finish != FinishReason::kNone) ended.count_down();
                           })
                  .ok());
  ended.wait();
  const std::vector<StepSpan> spans = view().spans;
  EXPECT_EQ(spans.size(), 32u);  // of the 60 that 12 steps have, what 4 steps may have
  std::map<std::string, int> found;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_FALSE(spans[i].device);
    EXPECT_GE(spans[i].end, spans[i].begin);
    if (i > 0) {
      EXPECT_GE(spans[i].begin, spans[i - 1].end);
    }
    ++found[spans[i].name];
  }
  for (const char* phase : {"schedule", "plan", "compute", "wait", "sample"}) EXPECT_GE(found[phase], 6) << phase;
}

}  // namespace
}  // namespace fovea
