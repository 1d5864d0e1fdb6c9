#include "chat/local_generation.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

namespace fovea::app {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void on_interrupt(int) { interrupted.store(true); }

// SIGINT cancels the answer while this lives; afterwards it kills the program as before.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted.store(false);
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &previous_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_ {};
};

}  // namespace

Result<LocalAnswer> generate_locally(Engine& engine, std::vector<std::int32_t> prompt, const SamplingParams& sampling,
                                     const std::function<void(std::string_view)>& on_text) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    LocalAnswer answer;
    Status error;
    bool ended = false;
  } shared;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const InterruptGuard guard;
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  Result<RequestId> id = engine.submit(std::move(request), [&](const GenerationEvent& event) {
    if (!event.text.empty()) on_text(event.text);
    const std::scoped_lock lock(shared.mutex);
    LocalAnswer& answer = shared.answer;
    if (!event.tokens.empty() && answer.first_token_s == 0.0) answer.first_token_s = elapsed();
    answer.text += event.text;
    if (event.finish == FinishReason::kNone) return;
    answer.finish = event.finish;
    answer.prompt_tokens = event.prompt_tokens;
    answer.cached_tokens = event.cached_tokens;
    answer.completion_tokens = event.completion_tokens;
    answer.total_s = elapsed();
    shared.error = event.error;
    shared.ended = true;
    shared.done.notify_all();
  });
  if (!id.ok()) return id.status();
  std::unique_lock lock(shared.mutex);
  bool cancelled = false;
  while (!shared.done.wait_for(lock, std::chrono::milliseconds(50), [&] { return shared.ended; })) {
    if (!interrupted.load() || cancelled) continue;
    cancelled = true;
    lock.unlock();
    engine.cancel(*id);
    lock.lock();
  }
  if (shared.answer.finish == FinishReason::kError) return shared.error;
  return std::move(shared.answer);
}

}  // namespace fovea::app
