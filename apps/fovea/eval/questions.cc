// See eval/questions.h.
#include "eval/questions.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/status.h"

namespace fovea::app {
namespace {

constexpr std::int32_t kAnswerTokens = 64;
constexpr std::size_t kAtOnce = 64;

// Answers of requests in flight; the callbacks run on the engine's thread.
class Collector {
 public:
  Collector(std::size_t count, const std::function<void()>& answered) : answered_(answered), events_(count) {}

  EventCallback callback(std::size_t index) {
    return [this, index](const GenerationEvent& event) {
      const std::lock_guard lock(mutex_);
      Slot& slot = events_[index];
      slot.text += event.text;
      for (const TokenLogprob& token : event.logprobs) slot.logprob += token.logprob;
      if (event.finish == FinishReason::kNone) return;
      slot.last = event;
      ++done_;
      answered_();
      changed_.notify_all();
    };
  }
  // Waits until at least `count` requests have ended.
  void wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count; });
  }

  struct Slot {
    std::string text;
    double logprob = 0.0;  // of all tokens
    GenerationEvent last;
  };
  const Slot& slot(std::size_t index) const { return events_[index]; }

 private:
  const std::function<void()>& answered_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> events_;
  std::size_t done_ = 0;
};

// The document and a question about it; how many of the prompt's last tokens came with the question.
struct Question {
  std::vector<std::int32_t> prompt;
  std::int32_t own_tokens = 0;
};

Result<Question> encode_question(const Engine& engine, const NeedleDocument& document, std::size_t index,
                                 const std::vector<std::int32_t>& document_alone) {
  Question question;
  FOVEA_ASSIGN_OR_RETURN(
      question.prompt,
      engine.encode_chat({{"user", document.text + "\n\n" + document.questions[index].question}}, true, ""));
  const auto differs =
      std::mismatch(question.prompt.begin(), question.prompt.end(), document_alone.begin(), document_alone.end()).first;
  question.own_tokens = static_cast<std::int32_t>(question.prompt.end() - differs);
  return question;
}

Status submit(Engine& engine, Question question, std::size_t index, const AskOptions& options, Collector& collector) {
  GenerateRequest request;
  request.prompt = std::move(question.prompt);
  request.sparse = options.sparse;
  request.kv_budget = options.kv_budget;
  request.sparse_prompt_tokens = options.question_selects ? question.own_tokens : 0;
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = kAnswerTokens;
  if (options.logprobs) request.sampling.logprobs = 0;
  const Result<RequestId> id = engine.submit(std::move(request), collector.callback(index));
  return id.ok() ? ok_status() : id.status();
}

}  // namespace

Result<std::vector<NeedleAnswer>> ask_about(Engine& engine, const NeedleDocument& document, const AskOptions& options,
                                            const std::function<void()>& answered) {
  const std::size_t count = document.questions.size();
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> alone,
                         engine.encode_chat({{"user", document.text}}, true, ""));
  std::vector<NeedleAnswer> answers(count);
  Collector collector(count, answered);
  Status failed;
  std::size_t submitted = 0;
  for (std::size_t i = 0; i < count && failed.ok(); ++i) {
    Result<Question> question = encode_question(engine, document, i, alone);
    if (!question.ok()) {
      failed = question.status();
      break;
    }
    answers[i].own_tokens = question->own_tokens;
    failed = submit(engine, std::move(*question), i, options, collector);
    if (failed.ok()) ++submitted;
    if (i == 0) collector.wait(submitted);
    if (submitted > kAtOnce) collector.wait(submitted - kAtOnce);
  }
  collector.wait(submitted);  // callbacks must not outlive the collector
  if (!failed.ok()) return failed;
  for (std::size_t i = 0; i < count; ++i) {
    const Collector::Slot& slot = collector.slot(i);
    if (slot.last.finish == FinishReason::kError) return slot.last.error;
    NeedleAnswer& answer = answers[i];
    answer.context = options.context;
    answer.question = document.questions[i];
    answer.answer = slot.text;
    answer.right = slot.text == answer.question.answer;
    answer.logprob = slot.logprob / std::max(slot.last.completion_tokens, 1);
    answer.prompt_tokens = slot.last.prompt_tokens;
    answer.cached_tokens = slot.last.cached_tokens;
    answer.last = slot.last;
  }
  return answers;
}

void count_answer(const NeedleAnswer& answer, NeedleScore& score) {
  score.total.add(answer.right);
  score.value.add(answer.answer.find(answer.question.value) != std::string::npos);
  if (answer.question.absent) {
    score.absent.add(answer.right);
    return;
  }
  const int tenth = std::min(static_cast<int>(answer.question.depth * kNeedleDepths), kNeedleDepths - 1);
  score.depth[static_cast<std::size_t>(tenth)].add(answer.right);
}

}  // namespace fovea::app
