// FakeEngine: an Engine of a few lines for the server's tests. A token is a byte; the answer to a prompt is the prompt
// itself, a byte a token, at a pace the test sets. It has one thread, as the real one, and the same rules for
// callbacks.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fovea/engine.h"
#include "fovea/engine_view.h"

namespace fovea::server {

class FakeEngine final : public Engine {
 public:
  struct Options {
    std::chrono::microseconds token_time{0};
    std::int32_t max_context = 4096;
    std::size_t max_queued = 1000;
    std::int64_t fail_after_tokens = -1;  // >= 0: each request then ends with kError
    std::string answer;                   // empty: the prompt
    std::string refusal, refused;         // refusal not empty: check() says so of every request, about `refused`
    std::function<void(std::string_view)> on_encode;  // called with each text, on the thread that encodes it
    bool has_bos = false;                             // encode() adds a first token where it is asked to
    std::vector<std::string> specials;                // texts that are a token: 1, 2, ...
    std::string chat_template;                        // its source
    bool refuse_later_system = false;                 // the template takes system messages at the head alone
    bool endless = false;                             // repeat the answer until max_tokens
    EngineView view;                                  // what view() shows, beside the stats
  };

  explicit FakeEngine(Options options) : options_(std::move(options)), thread_([this] { loop(); }) {}
  FakeEngine() : FakeEngine(Options()) {}
  ~FakeEngine() override {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Status check(const GenerateRequest& request, std::string* parameter) const override {
    const auto wrong = [parameter](std::string name, StatusCode code, std::string message) {
      if (parameter != nullptr) *parameter = std::move(name);
      return Status(code, std::move(message));
    };
    if (!options_.refusal.empty()) return wrong(options_.refused, StatusCode::kUnsupported, options_.refusal);
    if (request.prompt.empty()) return wrong("prompt", StatusCode::kInvalidArgument, "empty prompt");
    if (static_cast<std::int32_t>(request.prompt.size()) >= options_.max_context) {
      return wrong("prompt", StatusCode::kOutOfRange, "prompt longer than the context");
    }
    return ok_status();
  }
  Result<RequestId> submit(GenerateRequest request, EventCallback callback) override {
    const std::scoped_lock lock(mutex_);
    if (shut_) return Status(StatusCode::kUnavailable, "shutting down");
    if (running_.size() >= options_.max_queued) return Status(StatusCode::kResourceExhausted, "the queue is full");
    if (const Status status = check(request, nullptr); !status.ok()) return status;
    const RequestId id = ++last_id_;
    last_request_ = request;
    Running running{std::move(request), std::make_shared<const EventCallback>(std::move(callback)), "", 0, false};
    running.answer = options_.answer;
    if (running.answer.empty()) running.answer = decode(running.request.prompt, true);
    running_.emplace(id, std::move(running));
    stats_.prompt_tokens += last_request_.prompt.size();
    wake_.notify_all();
    return id;
  }
  void cancel(RequestId id) override {
    const std::scoped_lock lock(mutex_);
    const auto found = running_.find(id);
    if (found != running_.end()) found->second.cancelled = true;
    wake_.notify_all();
  }
  void flush_cache() override {
    const std::scoped_lock lock(mutex_);
    ++flushes_;
  }
  void shutdown(double seconds) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1e3));
    std::unique_lock lock(mutex_);
    shut_ = true;
    idle_.wait_until(lock, deadline, [&] { return running_.empty(); });
    for (auto& [id, running] : running_) running.cancelled = true;
    wake_.notify_all();
    idle_.wait(lock, [&] { return running_.empty() && !calling_; });
  }
  EngineStats stats() const override {
    const std::scoped_lock lock(mutex_);
    EngineStats stats = stats_;
    stats.running = static_cast<std::int64_t>(running_.size());
    return stats;
  }
  void view(ViewCallback callback) override {
    EngineView view = options_.view;
    view.stats = stats();
    callback(view);
  }

  const std::string& model_name() const override { return name_; }
  std::int32_t max_context() const override { return options_.max_context; }
  std::int32_t vocab_size() const override { return 256; }
  const std::vector<std::int32_t>& eos_tokens() const override { return eos_; }
  SamplingParams default_sampling() const override { return {}; }
  // Special tokens are "^" in front.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const override {
    if (options_.on_encode) options_.on_encode(text);
    std::vector<std::int32_t> tokens;
    if (add_special_tokens && options_.has_bos) tokens.push_back('^');
    while (!text.empty()) {
      const auto special = std::find_if(options_.specials.begin(), options_.specials.end(),
                                        [&](const std::string& one) { return text.starts_with(one); });
      const bool plain = special == options_.specials.end();
      tokens.push_back(plain ? static_cast<unsigned char>(text[0])
                             : static_cast<std::int32_t>(special - options_.specials.begin()) + 1);
      text.remove_prefix(plain ? 1 : special->size());
    }
    return tokens;
  }
  Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec) override {
    const std::scoped_lock lock(mutex_);
    if (spec.text.find("refused") != std::string::npos)
      return Status(StatusCode::kInvalidArgument, "the grammar is wrong");
    if (spec.text.find("enormous") != std::string::npos) return Status(StatusCode::kOutOfRange, "it is too long");
    last_grammar_ = spec;
    return std::shared_ptr<const Grammar>();
  }
  std::string chat_template() const override { return options_.chat_template; }
  std::string decode(const std::vector<std::int32_t>& tokens, bool) const override {
    std::string text;
    for (std::int32_t token : tokens) text.push_back(static_cast<char>(token));
    return text;
  }
  std::string token_bytes(std::int32_t token) const override { return std::string(1, static_cast<char>(token)); }
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages, bool,
                                                const std::string& template_json) const override {
    {
      const std::scoped_lock lock(mutex_);
      last_template_json_ = template_json;
      last_messages_ = messages;
    }
    std::string text;
    for (const ChatMessage& message : messages) {
      if (options_.refuse_later_system && message.role == "system" && !text.empty()) {
        return Status(StatusCode::kInvalidArgument, "system first");
      }
      text += message.content;
    }
    if (text == "template error") return Status(StatusCode::kInvalidArgument, "the template refuses this");
    return encode(text, false);
  }
  std::string explain_plan_svg() const override { return "<svg xmlns=\"http://www.w3.org/2000/svg\"/>"; }
  std::string explain_plan_text() const override { return "a plan"; }

  GenerateRequest last_request() const {
    const std::scoped_lock lock(mutex_);
    return last_request_;
  }
  GrammarSpec last_grammar() const {
    const std::scoped_lock lock(mutex_);
    return last_grammar_;
  }
  std::string last_template_json() const {
    const std::scoped_lock lock(mutex_);
    return last_template_json_;
  }
  std::vector<ChatMessage> last_messages() const {
    const std::scoped_lock lock(mutex_);
    return last_messages_;
  }
  std::int64_t flushes() const {
    const std::scoped_lock lock(mutex_);
    return flushes_;
  }

 private:
  struct Running {
    GenerateRequest request;
    std::shared_ptr<const EventCallback> callback;
    std::string answer;
    std::int64_t produced = 0;  // tokens of each choice
    bool cancelled = false;
  };
  struct Call {
    std::shared_ptr<const EventCallback> callback;
    GenerationEvent event;
  };

  // One token of every choice of every request; the calls are made after the lock is gone.
  void step(std::vector<Call>* calls) {
    for (auto it = running_.begin(); it != running_.end();) {
      Running& running = it->second;
      const std::int64_t max_tokens = running.request.sampling.max_tokens;
      const std::int64_t length = static_cast<std::int64_t>(running.answer.size());
      const std::int64_t next = running.produced;
      bool over = false;
      for (std::int32_t choice = 0; choice < running.request.n; ++choice) {
        GenerationEvent event;
        event.choice = choice;
        event.prompt_tokens = static_cast<std::int32_t>(running.request.prompt.size());
        event.completion_tokens = static_cast<std::int32_t>(next);
        if (running.cancelled) {
          event.finish = FinishReason::kCancelled;
        } else if (options_.fail_after_tokens >= 0 && next >= options_.fail_after_tokens) {
          event.finish = FinishReason::kError;
          event.error = Status(StatusCode::kInternal, "the fake engine was told to fail");
        } else {
          const char c = running.answer[static_cast<std::size_t>(next % length)];
          event.text = std::string(1, c);
          event.tokens = {static_cast<unsigned char>(c)};
          if (running.request.sampling.logprobs >= 0) {
            event.logprobs = {{static_cast<unsigned char>(c), -0.25f * static_cast<float>(choice + 1)}};
            event.top_logprobs.emplace_back();
            for (std::int32_t k = 0; k < running.request.sampling.logprobs; ++k) {
              event.top_logprobs[0].push_back({(static_cast<unsigned char>(c) + k) % 256, -0.25f - k});
            }
          }
          event.completion_tokens = static_cast<std::int32_t>(next + 1);
          if (max_tokens > 0 && next + 1 >= max_tokens) event.finish = FinishReason::kLength;
          if (!options_.endless && next + 1 >= length) event.finish = FinishReason::kStop;
        }
        over = event.finish != FinishReason::kNone;
        ++stats_.generated_tokens;
        calls->push_back({running.callback, std::move(event)});
      }
      ++running.produced;
      if (over) {
        ++(running.cancelled ? stats_.requests_cancelled : stats_.requests_finished);
        it = running_.erase(it);
      } else {
        ++it;
      }
    }
  }

  void loop() {
    std::vector<Call> calls;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !running_.empty(); });
      if (stop_) return;
      if (options_.token_time.count() > 0) {
        wake_.wait_for(lock, options_.token_time, [&] { return stop_; });
        if (stop_) return;
      }
      step(&calls);
      calling_ = true;
      lock.unlock();
      for (const Call& call : calls) (*call.callback)(call.event);
      calls.clear();
      lock.lock();
      calling_ = false;
      idle_.notify_all();
    }
  }

  const Options options_;
  const std::string name_ = "fake";
  const std::vector<std::int32_t> eos_ = {0};
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::map<RequestId, Running> running_;
  GenerateRequest last_request_;
  GrammarSpec last_grammar_;
  mutable std::string last_template_json_;  // of encode_chat, which is const
  mutable std::vector<ChatMessage> last_messages_;
  EngineStats stats_;
  RequestId last_id_ = 0;
  std::int64_t flushes_ = 0;
  bool stop_ = false, shut_ = false, calling_ = false;
  std::thread thread_;
};

}  // namespace fovea::server
