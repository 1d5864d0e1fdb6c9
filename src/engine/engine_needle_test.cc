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

TEST(EmbeddedNeedle, AnswersQuestionsAboutADocumentThatItReadsOnce) {
  EngineOptions options;
  options.kv_cache_bytes = 64 << 20;
  const auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->model_name(), "needle");

  NeedleSpec spec;
  spec.seed = 3;
  spec.split = NeedleSplit::kEval;
  spec.filler = NeedleFiller::kTemplates;
  spec.characters = 4000;
  spec.facts = 6;
  spec.questions = 5;
  spec.absent = 0;
  const NeedleDocument document = make_needle_document(spec);
  ASSERT_EQ(document.questions.size(), 5u);

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ended = 0;
  std::vector<std::string> answers(document.questions.size());
  std::int32_t cached = 0;
  std::int32_t prompt = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string content = document.text + "\n" + document.questions[i].question;
    auto tokens = (*engine)->encode_chat({{"user", content}}, true, "");
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    GenerateRequest request;
    request.prompt = *tokens;
    request.sampling = (*engine)->default_sampling();
    request.sampling.max_tokens = 48;
    const auto id = (*engine)->submit(request, [&, i](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      answers[i] += event.text;
      if (event.finish == FinishReason::kNone) return;
      EXPECT_EQ(event.finish, FinishReason::kStop);
      cached += event.cached_tokens;
      prompt += event.prompt_tokens;
      ++ended;
      changed.notify_all();
    });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return ended == answers.size(); }));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const bool found = answers[i].find(document.questions[i].value) != std::string::npos;
    EXPECT_TRUE(found) << answers[i] << " | expected " << document.questions[i].answer;
  }
  // All but the first take the document from the cache, though they came together.
  EXPECT_GT(cached, prompt / 5 * 4 * 9 / 10);
  // Nobody reads the shared document twice in a step.
  const EngineStats stats = (*engine)->stats();
  EXPECT_LT(stats.kv_bytes_read, stats.kv_bytes_unshared);
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
