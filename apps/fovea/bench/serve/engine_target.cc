// Load on an engine of this process: what the engine does, without HTTP and text on the way.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "bench/serve/load.h"
#include "console.h"

namespace fovea::app {
namespace {

using Clock = std::chrono::steady_clock;

class EngineTarget final : public LoadTarget {
 public:
  explicit EngineTarget(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  LoadResult run(std::span<const LoadRequest> requests, const LoadShape& shape) override;
  void forget_prefixes() override { engine_->flush_cache(); }
  std::int32_t vocab_size() const override { return engine_->vocab_size(); }
  std::int32_t max_context() const override { return engine_->max_context(); }
  const Engine* engine() const override { return engine_.get(); }

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

  std::unique_ptr<Engine> engine_;
};

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
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::unique_lock lock(running.mutex);
    if (clients > 0) {
      running.ended.wait(lock, [&] { return running.open < clients; });
    } else {
      const auto arrival = std::chrono::duration<double>(requests[i].arrival_s);
      running.ended.wait_until(lock, running.begin + std::chrono::duration_cast<Clock::duration>(arrival),
                               [&] { return seconds_since(running.begin) >= requests[i].arrival_s; });
    }
    const auto done = static_cast<std::int64_t>(i - running.open);
    lock.unlock();
    progress.set(done);
    send(running, i, requests[i], shape.choices);
  }
  std::unique_lock lock(running.mutex);
  while (running.open > 0) {
    running.ended.wait(lock);
    progress.set(static_cast<std::int64_t>(requests.size() - running.open));
  }
  running.result.seconds = seconds_since(running.begin);
  return std::move(running.result);
}

}  // namespace

std::unique_ptr<LoadTarget> engine_target(std::unique_ptr<Engine> engine) {
  return std::make_unique<EngineTarget>(std::move(engine));
}

}  // namespace fovea::app
