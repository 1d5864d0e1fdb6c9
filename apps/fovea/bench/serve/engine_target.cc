// Load on an engine of this process: what the engine does, without HTTP and text on the way.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include "bench/serve/load.h"
#include "console.h"

namespace fovea::app {
namespace {

using Clock = std::chrono::steady_clock;

class EngineTarget final : public LoadTarget {
 public:
  EngineTarget(std::unique_ptr<Engine> engine, bool watch) : engine_(std::move(engine)), watch_(watch) {}

  LoadResult run(std::span<const LoadRequest> requests, const LoadShape& shape) override;
  void forget_prefixes() override { engine_->flush_cache(); }
  std::int32_t vocab_size() const override { return engine_->vocab_size(); }
  std::int32_t max_context() const override { return engine_->max_context(); }
  const Engine* engine() const override { return engine_.get(); }
  std::vector<StepSpan> steps() const override {
    const std::scoped_lock lock(watched_->mutex);
    return watched_->spans;
  }

 private:
  // Of one run.
  struct Running {
    Clock::time_point begin = Clock::now();
    LoadResult result;
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t open = 0;            // requests
    std::vector<std::int32_t> left;  // choices of each that have not ended
  };
  void take_event(Running& running, std::size_t index, const GenerationEvent& event);
  void send(Running& running, std::size_t index, const LoadRequest& request, std::int32_t choices);

  // Waits until the condition holds or the time has come, and looks at the engine's steps meanwhile.
  void wait(Running& running, std::unique_lock<std::mutex>& lock, Clock::time_point until,
            const std::function<bool()>& holds);
  std::future<void> look();

  // The engine's thread calls back after a run too.
  struct Watched {
    std::mutex mutex;
    std::vector<StepSpan> spans;
    std::int64_t running = 0;
  };

  std::shared_ptr<Watched> watched_ = std::make_shared<Watched>();
  std::unique_ptr<Engine> engine_;
  bool watch_;
};

std::future<void> EngineTarget::look() {
  const auto done = std::make_shared<std::promise<void>>();
  engine_->view([watched = watched_, done](const EngineView& view) {
    const std::scoped_lock lock(watched->mutex);
    if (view.stats.running >= watched->running && !view.spans.empty()) {
      watched->running = view.stats.running;
      watched->spans = view.spans;
    }
    done->set_value();
  });
  return done->get_future();
}

void EngineTarget::wait(Running& running, std::unique_lock<std::mutex>& lock, Clock::time_point until,
                        const std::function<bool()>& holds) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  while (!holds() && Clock::now() < until) {
    running.ended.wait_until(lock, watch_ ? std::min(until, Clock::now() + kLook) : until);
    if (!watch_) continue;
    lock.unlock();  // the engine's thread may want it before it answers
    (void)look();
    lock.lock();
  }
}

void EngineTarget::take_event(Running& running, std::size_t index, const GenerationEvent& event) {
  const double now = seconds_since(running.begin);
  const std::scoped_lock lock(running.mutex);
  RequestTimes& times = running.result.requests[index];
  ChoiceTimes& choice = times.choices[static_cast<std::size_t>(event.choice)];
  if (!event.tokens.empty()) {
    choice.chunk_s.push_back(now);
    choice.tokens += static_cast<std::int64_t>(event.tokens.size());
  }
  if (event.finish == FinishReason::kNone) return;
  if (!event.error.ok()) times.error = event.error;
  times.prompt_tokens = event.prompt_tokens;
  if (event.choice == 0) times.cached_tokens = event.cached_tokens;
  if (--running.left[index] > 0) return;
  --running.open;
  running.ended.notify_one();
}

void EngineTarget::send(Running& running, std::size_t index, const LoadRequest& request, std::int32_t choices) {
  GenerateRequest asked;
  asked.prompt = request.prompt;
  asked.n = choices;
  asked.sampling.temperature = 0.0f;
  asked.sampling.max_tokens = request.max_tokens;
  asked.sampling.ignore_eos = true;
  {
    const std::scoped_lock lock(running.mutex);
    RequestTimes& times = running.result.requests[index];
    times.choices.resize(static_cast<std::size_t>(choices));
    times.sent_s = seconds_since(running.begin);
    running.left[index] = choices;
    ++running.open;
  }
  const auto submitted = engine_->submit(
      std::move(asked), [this, &running, index](const GenerationEvent& event) { take_event(running, index, event); });
  if (submitted.ok()) return;
  const std::scoped_lock lock(running.mutex);
  running.result.requests[index].error = submitted.status();
  --running.open;
}

LoadResult EngineTarget::run(std::span<const LoadRequest> requests, const LoadShape& shape) {
  Running running;
  running.result.requests.resize(requests.size());
  running.left.resize(requests.size());
  Progress progress("bench serve", static_cast<std::int64_t>(requests.size()));
  const auto clients = static_cast<std::size_t>(shape.clients);
  const Clock::time_point never = running.begin + std::chrono::hours(24 * 365);
  std::unique_lock lock(running.mutex);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (clients > 0) {
      wait(running, lock, never, [&] { return running.open < clients; });
    } else {
      const auto arrival = std::chrono::duration<double>(requests[i].arrival_s);
      wait(running, lock, running.begin + std::chrono::duration_cast<Clock::duration>(arrival), [] { return false; });
    }
    const auto done = static_cast<std::int64_t>(i - running.open);
    lock.unlock();
    progress.set(done);
    send(running, i, requests[i], shape.choices);
    lock.lock();
  }
  while (running.open > 0) {
    const std::size_t open = running.open;
    wait(running, lock, never, [&] { return running.open < open; });
    progress.set(static_cast<std::int64_t>(requests.size() - running.open));
  }
  running.result.seconds = seconds_since(running.begin);
  lock.unlock();
  if (watch_) look().wait();  // of a run that was over before anybody looked
  return std::move(running.result);
}

}  // namespace

std::unique_ptr<LoadTarget> engine_target(std::unique_ptr<Engine> engine, bool watch) {
  return std::make_unique<EngineTarget>(std::move(engine), watch);
}

}  // namespace fovea::app
