#include "engine/process_engine.h"

#include <unistd.h>

#include <utility>

#include "base/status.h"
#include "fovea/engine_view.h"

namespace fovea {
namespace {

class ProcessEngine final : public Engine {
 public:
  explicit ProcessEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  // A child leaves the engine as it is: to end it is to wait for its threads.
  ~ProcessEngine() override {
    if (!is_here()) (void)engine_.release();
  }

  Status check(const GenerateRequest& request, std::string* parameter) const override {
    return is_here() ? engine_->check(request, parameter) : elsewhere();
  }
  Result<RequestId> submit(GenerateRequest request, EventCallback callback) override {
    if (!is_here()) return elsewhere();
    return engine_->submit(std::move(request), std::move(callback));
  }
  void cancel(RequestId id) override {
    if (is_here()) engine_->cancel(id);
  }
  void flush_cache() override {
    if (is_here()) engine_->flush_cache();
  }
  void shutdown(double seconds) override {
    if (is_here()) engine_->shutdown(seconds);
  }
  EngineStats stats() const override {
    if (is_here()) return engine_->stats();
    EngineStats stats;
    stats.healthy = false;
    return stats;
  }
  void view(ViewCallback callback) override {
    if (is_here()) return engine_->view(std::move(callback));
    EngineView view;
    view.stats = stats();
    callback(view);
  }
  Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec) override {
    if (!is_here()) return elsewhere();
    return engine_->compile_grammar(spec);
  }
  std::string explain_plan_svg() const override { return is_here() ? engine_->explain_plan_svg() : std::string(); }
  std::string explain_plan_text() const override { return is_here() ? engine_->explain_plan_text() : std::string(); }

  // What never changes, and text, take neither threads nor locks.
  const std::string& model_name() const override { return engine_->model_name(); }
  std::int32_t max_context() const override { return engine_->max_context(); }
  std::int32_t vocab_size() const override { return engine_->vocab_size(); }
  const std::vector<std::int32_t>& eos_tokens() const override { return engine_->eos_tokens(); }
  SamplingParams default_sampling() const override { return engine_->default_sampling(); }
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const override {
    return engine_->encode(text, add_special_tokens);
  }
  std::string decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) const override {
    return engine_->decode(tokens, skip_special_tokens);
  }
  std::string token_bytes(std::int32_t token) const override { return engine_->token_bytes(token); }
  std::string chat_template() const override { return engine_->chat_template(); }
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                                const std::string& extra_json) const override {
    return engine_->encode_chat(messages, add_generation_prompt, extra_json);
  }

 private:
  bool is_here() const { return ::getpid() == process_; }
  static Status elsewhere() {
    return unsupported(
        "this process was forked from the one that made the engine, whose threads it does not have; make the engine "
        "after fork()");
  }

  std::unique_ptr<Engine> engine_;
  const pid_t process_ = ::getpid();
};

}  // namespace

std::unique_ptr<Engine> make_process_engine(std::unique_ptr<Engine> engine) {
  return std::make_unique<ProcessEngine>(std::move(engine));
}

}  // namespace fovea
