#include "chat/local_generation.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

#include "console.h"

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

std::string LocalAnswer::figures() const {
  if (finish == FinishReason::kCancelled && completion_tokens == 0) {
    return fmt::format("stopped after {} while the prompt was read, {} of {} tokens; there is no answer",
                       format_seconds(total_s), prompt_read, prompt_tokens);
  }
  return fmt::format("{} tokens read, {} of them cached; first token after {}, {} tokens at {:.0f} a second{}",
                     prompt_tokens, cached_tokens, format_seconds(first_token_s), completion_tokens, decode_rate(),
                     finish == FinishReason::kCancelled ? "; stopped" : "");
}

Result<LocalAnswer> generate_locally(Engine& engine, std::vector<std::int32_t> prompt, const SamplingParams& sampling,
                                     const std::function<void(std::string_view)>& on_text) {
  const auto length = static_cast<std::int32_t>(prompt.size());
  struct Shared {
    explicit Shared(std::int32_t length) : progress("reading the prompt", length, "tokens") {}
    std::mutex mutex;
    std::condition_variable done;
    LocalAnswer answer;
    Progress progress;  // until the first token
    Status error;
    bool ended = false;
  } shared(length);
  const auto begin = std::chrono::steady_clock::now();
  const InterruptGuard guard;
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  Result<RequestId> id = engine.submit(std::move(request), [&](const GenerationEvent& event) {
    const std::scoped_lock lock(shared.mutex);
    LocalAnswer& answer = shared.answer;
    if (!event.tokens.empty() && answer.first_token_s == 0.0) {
      answer.first_token_s = seconds_since(begin);
      answer.prompt_read = length;
    }
    shared.progress.clear();
    if (!event.text.empty()) on_text(event.text);
    answer.text += event.text;
    if (event.finish == FinishReason::kNone) return;
    answer.finish = event.finish;
    answer.prompt_tokens = event.prompt_tokens;
    answer.cached_tokens = event.cached_tokens;
    answer.completion_tokens = event.completion_tokens;
    answer.total_s = seconds_since(begin);
    shared.error = event.error;
    shared.ended = true;
    shared.done.notify_all();
  });
  if (!id.ok()) return id.status();
  std::unique_lock lock(shared.mutex);
  bool cancelled = false;
  while (!shared.done.wait_for(lock, std::chrono::milliseconds(50), [&] { return shared.ended; })) {
    const bool reading = shared.answer.first_token_s == 0.0;
    const bool cancel = interrupted.load() && !cancelled;
    lock.unlock();  // the engine's thread may hold its own lock while it calls back
    const std::int64_t left = reading ? engine.stats().prompt_tokens_pending : 0;
    if (cancel) engine.cancel(*id);
    lock.lock();
    cancelled = cancelled || cancel;
    if (!reading || shared.answer.first_token_s != 0.0 || shared.ended) continue;
    shared.answer.prompt_read = length - static_cast<std::int32_t>(left);
    if (!cancelled) shared.progress.set(shared.answer.prompt_read);
  }
  if (shared.answer.finish == FinishReason::kError) return shared.error;
  return std::move(shared.answer);
}

}  // namespace fovea::app
