// The engine as users meet it: the model that the binary carries, a document, several questions at once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "fovea/engine.h"
#include "workload/needle/document.h"

namespace fovea {
namespace {

NeedleDocument document_of(std::int32_t questions) {
  NeedleSpec spec;
  spec.seed = 3;
  spec.split = NeedleSplit::kEval;
  spec.filler = NeedleFiller::kTemplates;
  spec.characters = 4000;
  spec.facts = questions + 1;
  spec.questions = questions;
  spec.absent = 0;
  return make_needle_document(spec);
}

struct Answers {
  std::vector<std::string> texts;
  std::int32_t cached = 0;  // tokens of all prompts
  std::int32_t prompt = 0;
  EngineStats stats;
};

// Asks all questions at once.
void ask(const EngineOptions& options, const NeedleDocument& document, Answers& answers) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ended = 0;
  const auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->model_name(), "needle");
  answers.texts.resize(document.questions.size());
  for (std::size_t i = 0; i < answers.texts.size(); ++i) {
    const std::string content = document.text + "\n" + document.questions[i].question;
    auto tokens = (*engine)->encode_chat({{"user", content}}, true, "");
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    GenerateRequest request;
    request.prompt = *tokens;
    request.sampling = (*engine)->default_sampling();
    request.sampling.max_tokens = 48;
    const auto id = (*engine)->submit(request, [&, i](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      answers.texts[i] += event.text;
      if (event.finish == FinishReason::kNone) return;
      EXPECT_EQ(event.finish, FinishReason::kStop);
      answers.cached += event.cached_tokens;
      answers.prompt += event.prompt_tokens;
      ++ended;
      changed.notify_all();
    });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return ended == answers.texts.size(); }));
  lock.unlock();
  (*engine)->flush_cache();  // then stats() holds the last step
  answers.stats = (*engine)->stats();
}

TEST(EmbeddedNeedle, AnswersQuestionsAboutADocumentThatItReadsOnce) {
  EngineOptions options;
  options.kv_cache_bytes = 64 << 20;
  const NeedleDocument document = document_of(5);
  ASSERT_EQ(document.questions.size(), 5u);
  Answers answers;
  ask(options, document, answers);
  ASSERT_FALSE(HasFatalFailure());
  for (std::size_t i = 0; i < answers.texts.size(); ++i) {
    const bool found = answers.texts[i].find(document.questions[i].value) != std::string::npos;
    EXPECT_TRUE(found) << answers.texts[i] << " | expected " << document.questions[i].answer;
  }
  // All but the first take the document from the cache, though they came together.
  EXPECT_GT(answers.cached, answers.prompt / 5 * 4 * 9 / 10);
  // Nobody reads the shared document twice in a step.
  EXPECT_LT(answers.stats.kv_bytes_read, answers.stats.kv_bytes_unshared);
}

TEST(EmbeddedNeedle, DraftsFromTheDocumentGiveTheSameAnswersInFewerSteps) {
  EngineOptions options;
  options.kv_cache_bytes = 64 << 20;
  options.batch_invariant = true;  // the same bits, so also where two tokens are as likely
  const NeedleDocument document = document_of(2);
  Answers plain, drafted;
  ask(options, document, plain);
  options.speculate = "ngram";
  ask(options, document, drafted);
  EXPECT_EQ(drafted.texts, plain.texts);
  EXPECT_EQ(drafted.stats.generated_tokens, plain.stats.generated_tokens);
  // Of tokens that answer in the document's words.
  EXPECT_GT(drafted.stats.accepted_tokens, drafted.stats.generated_tokens / 2);
}

TEST(EmbeddedNeedle, RefusesTheHeadProfileOfAnotherModel) {
  EngineOptions options;
  options.kv_cache_bytes = 64 << 20;
  const auto streaming = [](const char* model) {
    return fmt::format("{{\"model\": \"{}\", \"sink_tokens\": 64, \"local_tokens\": 99, \"streaming\": [[0, 0]]}}",
                       model);
  };
  options.streaming = streaming("llama");
  EXPECT_THAT(Engine::create(options).status().message(), testing::HasSubstr("of the model \"llama\""));
  options.streaming = streaming("needle");
  EXPECT_TRUE(Engine::create(options).ok());
}

}  // namespace
}  // namespace fovea
