// EngineCore: the Engine over a device, a model and a tokenizer that are already there. Made by Engine::create and by
// tests with a model of their own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "engine/cache/kv_pool.h"
#include "engine/choice.h"
#include "engine/grammar/grammar.h"
#include "engine/kv_event_log.h"
#include "engine/model/key_codes.h"
#include "engine/model/model.h"
#include "engine/runner/key_profiler.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/step_log.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/step_clock.h"
#include "engine/sparse_options.h"
#include "engine/store/kv_tier.h"
#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "fovea/engine.h"
#include "fovea/engine_view.h"

namespace fovea {

struct EngineParts {
  EngineOptions options;
  std::string name;
  std::unique_ptr<Device> device;  // outlives the model
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;  // without one, only token ids go in and out
  std::optional<ChatTemplate> chat_template;
  KeyCodes key_codes;
  std::shared_ptr<KeyProfiler> profiler;  // of an engine that learns them; or null
  Hash128 model_hash;                     // tells models apart in a KV store
  std::function<double()> clock;          // seconds, for the sizes of steps; empty: the machine's
};

// Limits that options and model agree on: what load_model needs to know before there is an engine.
Status check_engine_options(const EngineOptions& options);
Status check_tier_options(const EngineOptions& options);  // of engine_tier.cc
std::int32_t effective_max_running(const EngineOptions& options);
std::int32_t max_draft_tokens(const EngineOptions& options);  // that a step verifies
std::int32_t max_scores(const EngineOptions& options);        // of prompts' tokens, in a step
// Rows of a step whose logits are wanted, at most.
std::int32_t max_logit_rows(const EngineOptions& options);

class EngineCore final : public Engine {
 public:
  static Result<std::unique_ptr<EngineCore>> create(EngineParts parts);
  // On a rank other than 0 (Device::group): runs rank 0's steps until it has stopped; the Status says why they failed.
  // Nothing else of an engine is there.
  Status follow();
  ~EngineCore() override;

  Status check(const GenerateRequest& request, std::string* parameter) const override;
  Result<RequestId> submit(GenerateRequest request, EventCallback callback) override;
  void cancel(RequestId id) override;
  void flush_cache() override;
  void shutdown(double seconds) override;
  EngineStats stats() const override;
  void view(ViewCallback callback) override;

  const std::string& model_name() const override { return parts_.name; }
  std::int32_t max_context() const override { return max_context_; }
  std::int32_t vocab_size() const override { return parts_.model->config().vocab_size; }
  const std::vector<std::int32_t>& eos_tokens() const override { return parts_.model->config().eos_tokens; }
  SamplingParams default_sampling() const override;

  Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec) override;
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const override;
  std::string decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) const override;
  std::string token_bytes(std::int32_t token) const override;
  std::string chat_template() const override;
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                                const std::string& extra_json) const override;
  std::string explain_plan_svg() const override { return runner_->explain_svg(); }
  std::string explain_plan_text() const override { return runner_->explain_text(); }

  // Pages, locks and rows agree. Runs on the engine's thread between steps.
  Status check_integrity();

 private:
  using Clock = std::chrono::steady_clock;

  // check(), and what the request selects.
  Result<SparseSetting> accept(const GenerateRequest& request, std::string* parameter) const;
  explicit EngineCore(EngineParts parts) : parts_(std::move(parts)), sampler_(vocab_size()) {}
  Status set_up();
  Status set_up_memory();
  Status set_up_tier();
  // Bytes of each token; empty for those that only templates and stops are made of.
  std::vector<std::string> grammar_vocabulary() const;

  // On the engine's thread.
  void loop();
  void take_mail(std::unique_lock<std::mutex>& lock);
  void start(std::unique_ptr<ActiveRequest> request);
  void make_drafts();
  void cut_drafts(std::span<Choice* const> choices, std::size_t decoding);
  // A step that was launched, until its results are taken.
  struct Flight {
    std::vector<StepItem> items{};  // without a sequence: it has ended since, or was taken back
    bool followed = false;          // the next one was launched too: this one is committed, and its logits are gone
    bool draws_on_host = false;     // one of its tokens: its logits must stay
    bool has_prompts = false;
    StepWork work{};  // what its time depends on
    double begin = 0.0;
  };
  std::vector<std::int32_t> forced_tokens(Choice& choice) const;
  void run_step();
  const Step& schedule(bool ahead);
  // Why no step may be launched before the results of this one are read, or null: all that decides about it.
  const char* why_not_ahead(const Flight& flight);
  bool may_run_ahead(const Flight& flight);
  Status launch(const Step& step, std::span<const std::int32_t> token_rows);
  // Of what was scheduled.
  Flight flight_of(const Step& step) const;
  // The step behind this one, from tokens that the device has and we do not; becomes flight_, if there is any.
  Status launch_ahead(Flight& flight);
  // While the device computes: what grammars allow next.
  void prepare_masks(const Flight& flight);
  void finish(const Flight& flight);
  void fail_step(const Flight& flight, const Status& status);
  // From a step that was followed, by the token that is not known: it is computed again.
  void take_back(Choice& choice);
  // What flight_ gives for the choice is nobody's any more; and waits for all that is under way, and leaves it.
  void leave_flight(const Choice& choice);
  void leave_flights();
  // Whom the prefix cache tells of its pages.
  void set_up_listeners();
  void send_kv_events();
  // Copies and reads of pages beyond memory, between two steps; and all that is left of them, at the end.
  void tend_tier();
  void save_tier();
  bool tier_is_busy() const;
  void sample_items(const Flight& flight);
  // Log probabilities of the prompt's tokens that the step computed; row: the first of their logits.
  void take_scores(Choice& choice, const StepItem& item, std::size_t row);
  // row: of the runner's results.
  void fork_choices(Choice& first, std::size_t row);
  Result<SampledToken> sample_token(Choice& choice, std::size_t row);
  void sample_choice(Choice& choice, std::size_t row);
  void verify_draft(Choice& choice, std::size_t row, const StepItem& item);
  void deliver_token(Choice& choice, SampledToken sampled);
  void end_choice(Choice& choice, GenerationEvent event);
  void end_request(ActiveRequest& request, FinishReason reason, const Status& error);
  void send(ActiveRequest& request, GenerationEvent event);
  void fail_all(const Status& error);
  // Whether no step will ever succeed again, the device or other ranks being gone: what clients are told from then on.
  bool is_lost();
  void set_failure(const Status& why);
  void stop_ranks();
  void erase_ended();
  void publish_stats();
  double now() const;
  void answer_views(std::unique_lock<std::mutex>& lock);
  void fill_view(EngineView& view) const;
  RequestView view_of(const Choice& choice) const;
  std::int64_t kv_bytes_in_use() const;

  EngineParts parts_;
  SparseConfig sparse_;
  std::int32_t max_context_ = 0;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvTier> tier_;        // or null
  std::unique_ptr<KvEventLog> events_;  // or null
  bool starved_ = false;                // nothing runs until pages have come back
  std::unique_ptr<ReqToTokenPool> rows_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepLog> step_log_;  // or null; of the runner too
  StepClock clock_{[this] { return now(); }};
  double step_end_ = 0.0;  // of the latest step
  std::unique_ptr<ModelRunner> runner_;
  Sampler sampler_;
  std::unique_ptr<GrammarCompiler> grammars_;  // none without a tokenizer
  std::map<RequestId, std::unique_ptr<ActiveRequest>> active_;
  std::vector<RequestId> ended_;
  std::uint64_t next_sequence_ = 0;
  EngineStats counters_;  // the engine thread's own
  std::optional<Flight> flight_;
  bool next_draws_on_host_ = false;  // a token of the step that is scheduled next
  const char* why_not_ = nullptr;    // no step ran ahead lately
  Status failure_;                   // every request ends with it

  // Between threads.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<ActiveRequest>> incoming_;
  std::vector<RequestId> cancels_;
  std::vector<Status*> checks_;
  std::vector<ViewCallback> views_;
  std::uint64_t flushes_asked_ = 0, flushes_taken_ = 0, flushes_done_ = 0;
  bool draining_ = false;
  bool stop_ = false;
  std::size_t open_requests_ = 0;
  RequestId next_request_ = 0;
  EngineStats stats_;
  Clock::time_point last_step_ = Clock::now();
  std::mutex shutdown_mutex_;
  std::thread thread_;
};

// Engine::create with the processes of tensor parallelism, of which this is rank 0.
Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, std::shared_ptr<ProcessGroup> group);

// An engine that learns its model's key sketch of all that it reads. kUnsupported for a quantized KV cache.
struct ProfilingEngine {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const KeyProfiler> profiler;  // to be asked when no request runs
};
Result<ProfilingEngine> create_profiling_engine(const EngineOptions& options);
// Another of them: loads the model, and follows rank 0 to the end.
Status follow_engine(const EngineOptions& options, std::shared_ptr<ProcessGroup> group);

}  // namespace fovea
