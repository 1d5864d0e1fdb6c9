// The engine's thread: mail, steps, cancellation, errors.
#include "engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "device/group/process_group.h"
#include "engine/ranks/step_record.h"

namespace fovea {
namespace {

constexpr std::int32_t kMaxChoices = 128;

Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return resource_exhausted("out of memory in the engine");
  return internal_error("the engine failed: {}", error.what());
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(EngineParts parts) {
  FOVEA_RETURN_IF_ERROR(check_engine_options(parts.options));
  auto engine = std::unique_ptr<EngineCore>(new EngineCore(std::move(parts)));
  FOVEA_RETURN_IF_ERROR(engine->set_up());
  return engine;
}

EngineCore::~EngineCore() { shutdown(0.0); }

Result<SparseSetting> EngineCore::accept(const GenerateRequest& request, std::string* parameter) const {
  const auto wrong = [parameter](const char* name, Status status) {
    if (parameter != nullptr) *parameter = name;
    return status;
  };
  if (request.prompt.empty()) {
    return wrong("prompt", invalid_argument("the prompt is empty; expected at least one token"));
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab_size()) {
      return wrong("prompt",
                   invalid_argument("prompt token {} is {}; expected 0 to {}", i, request.prompt[i], vocab_size() - 1));
    }
  }
  if (request.prompt.size() >= static_cast<std::size_t>(max_context_)) {
    return wrong("prompt", out_of_range("the prompt has {} tokens; the context holds {}, one of them for the answer",
                                        request.prompt.size(), max_context_));
  }
  if (request.n < 1 || request.n > kMaxChoices) {
    return wrong("n", invalid_argument("n is {}; expected 1 to {} choices", request.n, kMaxChoices));
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxTopLogprobs) {
    return wrong("prompt_logprobs", invalid_argument("prompt_logprobs is {}; expected -1 to {}",
                                                     request.prompt_logprobs, kMaxTopLogprobs));
  }
  if (request.prompt_only && (request.prompt_logprobs < 0 || request.n != 1)) {
    return wrong("prompt_only", invalid_argument("a prompt alone is scored once: prompt_only needs prompt_logprobs and "
                                                 "n 1"));
  }
  FOVEA_RETURN_IF_ERROR(check_sampling(request.sampling, vocab_size(), parameter));
  if (!parts_.tokenizer.has_value() && !request.sampling.stop.empty()) {
    return wrong("stop", unsupported("stop strings need a tokenizer, and {} has none", parts_.name));
  }
  return sparse_setting(sparse_, request, parameter);
}

Status EngineCore::check(const GenerateRequest& request, std::string* parameter) const {
  return accept(request, parameter).status();
}

Result<RequestId> EngineCore::submit(GenerateRequest request, EventCallback callback) {
  if (callback == nullptr) return invalid_argument("the request has no callback for its events");
  FOVEA_ASSIGN_OR_RETURN(const SparseSetting sparse, accept(request, nullptr));
  auto active = std::make_unique<ActiveRequest>();
  active->sparse = sparse;
  active->request = std::move(request);
  active->callback = std::move(callback);
  const std::unique_lock lock(mutex_);
  if (draining_) return Status(StatusCode::kUnavailable, "the engine is shutting down");
  const std::size_t limit = static_cast<std::size_t>(parts_.options.max_queued) + effective_max_running(parts_.options);
  if (open_requests_ >= limit) {
    return resource_exhausted("{} requests are running or queued, and no more are taken; try again later",
                              open_requests_);
  }
  if (!stats_.healthy) {
    return make_status(StatusCode::kUnavailable, "the engine has failed and must be restarted: {}", stats_.failure);
  }
  const RequestId id = ++next_request_;
  active->id = id;
  active->arrival = Clock::now();
  const SamplingParams& sampling = active->request.sampling;
  active->seed = sampling.has_seed
                     ? sampling.seed
                     : hash_combine(id, static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()));
  if (open_requests_++ == 0) last_step_ = Clock::now();
  stats_.prompt_tokens_pending += static_cast<std::int64_t>(active->request.prompt.size());
  incoming_.push_back(std::move(active));
  wake_.notify_one();
  return id;
}

void EngineCore::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancels_.push_back(id);
  wake_.notify_one();
}

void EngineCore::flush_cache() {
  std::unique_lock lock(mutex_);
  if (stop_) return;
  const std::uint64_t ticket = ++flushes_asked_;
  wake_.notify_one();
  if (std::this_thread::get_id() == thread_.get_id()) return;  // from a callback: waiting would wait for itself
  idle_.wait(lock, [&] { return stop_ || flushes_done_ >= ticket; });
}

Status EngineCore::check_integrity() {
  Status result(StatusCode::kUnavailable, "the engine's thread has ended");
  std::unique_lock lock(mutex_);
  if (stop_) return result;
  checks_.push_back(&result);
  wake_.notify_one();
  idle_.wait(lock, [&] { return std::find(checks_.begin(), checks_.end(), &result) == checks_.end(); });
  return result;
}

void EngineCore::shutdown(double seconds) {
  const std::lock_guard only_one(shutdown_mutex_);
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    idle_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)),
                   [&] { return open_requests_ == 0; });
    stop_ = true;
    wake_.notify_one();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  stop_ranks();
}

void EngineCore::stop_ranks() {
  ProcessGroup* const group = parts_.device->group();
  if (group == nullptr) return;
  std::vector<std::int32_t> words = StepWriter::stop();
  (void)group->broadcast(words);  // where it fails they have ended
  group->leave();
}

Status EngineCore::follow() {
  ProcessGroup* const group = parts_.device->group();
  if (group == nullptr || group->rank() == 0) return internal_error("there is nobody to follow");
  StepReader reader(*rows_);
  std::vector<std::int32_t> words;
  while (true) {
    FOVEA_RETURN_IF_ERROR(group->broadcast(words));
    FOVEA_ASSIGN_OR_RETURN(const Step* const step, reader.read(words));
    if (step == nullptr) break;
    FOVEA_RETURN_IF_ERROR(runner_->run(*step));
  }
  group->leave();
  return ok_status();
}

EngineStats EngineCore::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.queued += static_cast<std::int64_t>(incoming_.size());
  if (open_requests_ > 0) {
    stats.seconds_since_step = std::chrono::duration<double>(Clock::now() - last_step_).count();
  }
  return stats;
}

void EngineCore::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_called = [&] {
      return stop_ || flushes_asked_ != flushes_taken_ || !incoming_.empty() || !cancels_.empty() || !checks_.empty() ||
             !views_.empty() || flight_.has_value();
    };
    if ((starved_ && scheduler_->is_restoring()) || (!scheduler_->has_work() && tier_is_busy())) {
      wake_.wait_for(lock, std::chrono::milliseconds(1), is_called);  // the tier's threads call nobody
    } else {
      wake_.wait(lock, [&] { return is_called() || scheduler_->has_work(); });
    }
    take_mail(lock);
    const bool stop = stop_;
    lock.unlock();
    if (stop) {
      for (const auto& [id, request] : active_) end_request(*request, FinishReason::kCancelled, ok_status());
      leave_flights();
      if (failure_.ok()) save_tier();
    } else if (!failure_.ok()) {
      for (const auto& [id, request] : active_) end_request(*request, FinishReason::kError, failure_);
      if (flight_.has_value()) leave_flights();
    } else if (scheduler_->has_work() || flight_.has_value()) {
      try {
        run_step();
      } catch (const std::exception& error) {
        if (parts_.device->group() != nullptr) parts_.device->group()->end(status_of(error));
        fail_all(status_of(error));
        leave_flights();
        scheduler_->flush_cache();  // prompts of a step that was followed may be in it, computed or not
      }
    }
    erase_ended();
    tend_tier();
    send_kv_events();
    lock.lock();
    publish_stats();
    if (flushes_done_ != flushes_taken_) {  // only now, so that stats() after flush_cache() shows it
      flushes_done_ = flushes_taken_;
      idle_.notify_all();
    }
    answer_views(lock);
    if (active_.empty() && incoming_.empty()) idle_.notify_all();
    if (stop && incoming_.empty()) return;
  }
}

void EngineCore::take_mail(std::unique_lock<std::mutex>& lock) {
  std::vector<std::unique_ptr<ActiveRequest>> incoming;
  std::vector<RequestId> cancels;
  incoming.swap(incoming_);
  cancels.swap(cancels_);
  const std::vector<Status*> checks = checks_;
  const bool flush = std::exchange(flushes_taken_, flushes_asked_) != flushes_asked_;
  lock.unlock();
  for (auto& request : incoming) start(std::move(request));
  for (const RequestId id : cancels) {
    const auto found = active_.find(id);
    if (found != active_.end()) end_request(*found->second, FinishReason::kCancelled, ok_status());
  }
  if (flush) {
    scheduler_->flush_cache();
    if (tier_ != nullptr) tier_->clear();
  }
  for (Status* check : checks) *check = scheduler_->check();
  erase_ended();
  lock.lock();
  if (checks.empty()) return;
  checks_.erase(checks_.begin(), checks_.begin() + static_cast<std::ptrdiff_t>(checks.size()));
  idle_.notify_all();
}

void EngineCore::start(std::unique_ptr<ActiveRequest> owned) {
  ActiveRequest& request = *owned;
  active_.emplace(request.id, std::move(owned));
  const GenerateRequest& asked = request.request;
  const auto prompt_length = static_cast<std::int32_t>(asked.prompt.size());
  request.open = asked.n;
  for (std::int32_t i = 0; i < asked.n; ++i) {
    auto choice = std::make_unique<Choice>();
    choice->request = &request;
    choice->index = i;
    choice->id = ++next_sequence_;
    choice->arrival = request.id;
    choice->priority = asked.priority;
    choice->salt = cache_salt(asked.cache_salt, request.sparse);
    choice->tokens = asked.prompt;
    choice->prompt_length = prompt_length;
    if (i == 0 && asked.prompt_logprobs >= 0) choice->scored = 0;
    choice->sparse = request.sparse;
    choice->sparse.phase = hash_combine(hash_span(std::span(asked.prompt)), static_cast<std::uint64_t>(i));
    choice->max_tokens = max_context_ - prompt_length;
    if (asked.sampling.max_tokens > 0) choice->max_tokens = std::min(choice->max_tokens, asked.sampling.max_tokens);
    const std::uint64_t seed = i == 0 ? request.seed : hash_combine(request.seed, static_cast<std::uint64_t>(i));
    choice->sampling.emplace(asked.sampling, seed, asked.prompt, eos_tokens());
    if (asked.grammar != nullptr) choice->grammar.emplace(asked.grammar);
    choice->greedy = asked.grammar == nullptr && choice->sampling->is_plain_greedy();
    // The first of several draws for all of them from its first logits.
    if (asked.grammar == nullptr && (i > 0 || asked.n == 1)) choice->draw = choice->sampling->draw_setting();
    if (parts_.tokenizer.has_value()) choice->decoder.emplace(*parts_.tokenizer, asked.sampling.skip_special_tokens);
    choice->stops.emplace(asked.sampling.stop, asked.sampling.include_stop_text);
    request.choices.push_back(std::move(choice));
  }
  counters_.prompt_tokens += static_cast<std::uint64_t>(prompt_length);
  counters_.prompt_tokens_pending += prompt_length;
  scheduler_->add(request.choices[0].get());
}

double EngineCore::now() const {
  if (parts_.clock) return parts_.clock();
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void EngineCore::end_request(ActiveRequest& request, FinishReason reason, const Status& error) {
  for (const auto& choice : request.choices) {
    if (choice->state == SequenceState::kDone) continue;
    GenerationEvent event;
    event.choice = choice->index;
    event.finish = reason;
    event.error = error;
    end_choice(*choice, std::move(event));
  }
}

void EngineCore::fail_all(const Status& error) {
  log_error("{}", error.message());
  (void)is_lost();
  for (const auto& [id, request] : active_) end_request(*request, FinishReason::kError, error);
  if (failure_.ok()) set_failure(scheduler_->check());
}

bool EngineCore::is_lost() {
  // A device of several may wait for ranks that are gone.
  ProcessGroup* const group = parts_.device->group();
  if (failure_.ok()) set_failure(group != nullptr ? group->status() : parts_.device->status());
  return !failure_.ok();
}

void EngineCore::set_failure(const Status& why) {
  if (why.ok()) return;
  failure_ = why;
  log_error("the engine has failed: {}", why.message());
  const std::lock_guard lock(mutex_);
  stats_.healthy = false;
  stats_.failure = why.message();
}

void EngineCore::erase_ended() {
  if (ended_.empty()) return;
  for (const RequestId id : ended_) {
    const auto found = active_.find(id);
    const auto length = static_cast<std::int32_t>(found->second->request.prompt.size());
    counters_.prompt_tokens_pending -= length - found->second->prompt_read;
    active_.erase(found);
  }
  const std::lock_guard lock(mutex_);
  open_requests_ -= ended_.size();
  ended_.clear();
}

std::int64_t EngineCore::kv_bytes_in_use() const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < pool_->num_groups(); ++g) {
    bytes += (pool_->page_bytes(g) + runner_->stats_page_bytes(g)) * pool_->pages_in_use(g);
  }
  return bytes;
}

void EngineCore::publish_stats() {
  stats_ = counters_;
  stats_.healthy = failure_.ok();
  stats_.failure = failure_.message();
  for (const auto& request : incoming_) {
    stats_.prompt_tokens_pending += static_cast<std::int64_t>(request->request.prompt.size());
  }
  stats_.running = static_cast<std::int64_t>(scheduler_->num_running());
  stats_.queued = static_cast<std::int64_t>(scheduler_->num_waiting());
  stats_.pages_total = pool_->pages(0).total();
  stats_.pages_free = pool_->pages(0).num_free();
  stats_.pages_cached = scheduler_->cache().evictable(0);
  stats_.page_bytes = pool_->page_bytes(0);
  stats_.kv_bytes_in_use = kv_bytes_in_use();
  stats_.retractions = scheduler_->num_retractions();
  stats_.prompt_chunk_tokens = scheduler_->prompt_room();
  const DeviceGraphs graphs = parts_.device->graphs();
  stats_.device_graphs = graphs.count;
  stats_.device_graph_bytes = graphs.bytes;
  if (tier_ != nullptr) {
    const KvTierStats tier = tier_->stats();
    stats_.kv_host_bytes = tier.host_bytes;
    stats_.kv_host_pages = tier.host_pages;
    stats_.kv_store_bytes = tier.store_bytes;
    stats_.kv_store_pages = tier.store_pages;
    stats_.kv_pages_spilled = tier.spilled_pages;
    stats_.kv_pages_restored = tier.restored_pages;
    stats_.kv_pages_read = tier.read_pages;
    stats_.kv_pages_written = tier.written_pages;
    stats_.kv_store_errors = tier.errors;
  }
  last_step_ = Clock::now();
}

}  // namespace fovea
