// Grammars through the engine, on the embedded model at a high temperature: every choice of every request keeps to its
// own, whoever shares the batch and however often it was retracted.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "fovea/engine.h"

namespace fovea {
namespace {

struct Texts {
  std::vector<std::string> texts;
  std::vector<FinishReason> finishes;
};

// Submits all requests, waits for their ends, and gives the texts of request i at i.
std::vector<Texts> run_all(Engine& engine, const std::vector<GenerateRequest>& requests) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Texts> runs(requests.size());
  std::size_t open = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto choices = static_cast<std::size_t>(requests[i].n);
    runs[i].texts.resize(choices);
    runs[i].finishes.resize(choices);
    open += choices;
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine.submit(requests[i], [&, i](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      const auto choice = static_cast<std::size_t>(event.choice);
      runs[i].texts[choice] += event.text;
      if (event.finish == FinishReason::kNone) return;
      EXPECT_TRUE(event.error.ok()) << event.error.to_string();
      runs[i].finishes[choice] = event.finish;
      --open;
      changed.notify_all();
    });
    EXPECT_TRUE(id.ok()) << id.status().to_string();
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return open == 0; });
  return runs;
}

GenerateRequest request_of(Engine& engine, const std::string& prompt, std::shared_ptr<const Grammar> grammar) {
  GenerateRequest request;
  request.prompt = *engine.encode(prompt, true);
  request.grammar = std::move(grammar);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 5;
  request.sampling.has_seed = true;
  request.sampling.max_tokens = 400;
  return request;
}

TEST(EngineGrammar, HoldsForEveryChoiceThroughRetractions) {
  EngineOptions options;
  options.kv_cache_bytes = 2 << 20;  // less than the choices of the first request fill
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto numbers = (*engine)->compile_grammar(
      {GrammarKind::kJsonSchema,
       R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"minItems":40,"maxItems":40})"});
  ASSERT_TRUE(numbers.ok()) << numbers.status().message();
  const auto word = (*engine)->compile_grammar({GrammarKind::kRegex, "(yes|no)!{3}"});
  ASSERT_TRUE(word.ok()) << word.status().message();

  std::vector<GenerateRequest> requests;
  requests.push_back(request_of(**engine, "Numbers:", *numbers));
  requests.back().n = 8;
  requests.push_back(request_of(**engine, "Is it so?", *word));
  requests.back().sampling.ignore_eos = true;  // a complete answer ends all the same,
  requests.back().sampling.min_tokens = 50;    // and where nothing may follow, nothing does
  requests.push_back(request_of(**engine, "It was", nullptr));
  requests.back().sampling.max_tokens = 40;
  const std::vector<Texts> runs = run_all(**engine, requests);
  for (std::size_t choice = 0; choice < 8; ++choice) {
    EXPECT_EQ(runs[0].finishes[choice], FinishReason::kStop);
    const Json list = Json::parse(runs[0].texts[choice], nullptr, false);
    ASSERT_TRUE(list.is_array()) << runs[0].texts[choice];
    EXPECT_EQ(list.size(), 40u);
    for (const Json& number : list) EXPECT_TRUE(number.is_number_integer() && number >= 0 && number <= 9);
  }
  EXPECT_EQ(runs[1].finishes[0], FinishReason::kStop);
  EXPECT_TRUE(runs[1].texts[0] == "yes!!!" || runs[1].texts[0] == "no!!!") << runs[1].texts[0];
  EXPECT_GT((*engine)->stats().retractions, 0u);
}

// What a grammar forces is verified several tokens a step, greedy and sampled, and the answers are the same. Steps are
// not counted: how many there are is also up to when each request arrives.
TEST(EngineGrammar, ForcedTokensNeedNoStepsOfTheirOwn) {
  std::vector<Texts> plain;
  for (const char* speculate : {"off", "ngram"}) {
    EngineOptions options;
    options.kv_cache_bytes = 16 << 20;
    options.batch_invariant = true;
    options.speculate = speculate;
    auto engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const auto record =
        (*engine)->compile_grammar({GrammarKind::kJsonSchema,
                                    R"({"type":"object","properties":{"the place where it was found":{"type":"boolean"},
         "how many of them there are":{"type":"integer","minimum":1,"maximum":9},"a word for it":{"enum":["lantern"]}},
         "required":["the place where it was found","how many of them there are","a word for it"]})"});
    ASSERT_TRUE(record.ok()) << record.status().message();
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(request_of(**engine, "A record:", *record));
      requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
      requests.back().n = i == 3 ? 3 : 1;
    }
    std::vector<Texts> runs = run_all(**engine, requests);
    const EngineStats stats = (*engine)->stats();
    if (plain.empty()) {
      plain = std::move(runs);
      EXPECT_EQ(stats.draft_tokens, 0u);
      continue;
    }
    for (std::size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(runs[i].texts, plain[i].texts) << i;
    EXPECT_FALSE(Json::parse(runs[0].texts[0], nullptr, false).is_discarded()) << runs[0].texts[0];
    EXPECT_GT(3 * stats.accepted_tokens, stats.generated_tokens);
  }
}

// Draft tokens that do not keep to the grammar are left out, and those that do change no answer, wherever it ends.
TEST(EngineGrammar, DraftsKeepToGrammars) {
  std::vector<Texts> plain;
  for (const char* speculate : {"off", "ngram"}) {
    EngineOptions options;
    options.kv_cache_bytes = 16 << 20;
    options.kv_dtype = DType::kF32;
    options.num_threads = 1;
    options.speculate = speculate;
    auto engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const GrammarSpec specs[] = {
        {GrammarKind::kRegex, "((ab|ba|cc) ?){30,50}"},
        {GrammarKind::kJsonSchema,
         R"({"type":"array","items":{"enum":["red","blue","green",12,true]},"minItems":12,"maxItems":20})"},
        {GrammarKind::kEbnf, "root ::= (\"left\" | \"right\" | \"up\") (\", \" root | \".\")"}};
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 12; ++i) {
      const auto grammar = (*engine)->compile_grammar(specs[i % 3]);
      ASSERT_TRUE(grammar.ok()) << grammar.status().message();
      requests.push_back(request_of(**engine, "Go on:", *grammar));
      SamplingParams& sampling = requests.back().sampling;
      sampling.seed = static_cast<std::uint64_t>(i);
      sampling.max_tokens = i == 5 ? 1 : i == 6 ? 2 : 120;
      if (i > 6) sampling.min_tokens = 30;
      if (i == 3 || i == 9) sampling.stop = {"cc c"};
      if (i == 7) sampling.stop = {"12, tru"};
      if (i % 4 == 1) sampling.repetition_penalty = 1.1f;
      requests.back().n = i == 8 ? 3 : 1;
    }
    std::vector<Texts> runs = run_all(**engine, requests);
    if (plain.empty()) {
      plain = std::move(runs);
      continue;
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      EXPECT_EQ(runs[i].texts, plain[i].texts) << i;
      EXPECT_EQ(runs[i].finishes, plain[i].finishes) << i;
    }
    EXPECT_GT((*engine)->stats().accepted_tokens, 50u);
  }
}

// A grammar that is followed in ever more ways ends its answer with the reason; those beside it go on.
TEST(EngineGrammar, AnAnswerThatTakesTooMuchWorkEndsAlone) {
  EngineOptions options;
  options.kv_cache_bytes = 64 << 20;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto ambiguous = (*engine)->compile_grammar({GrammarKind::kEbnf, "root ::= s \"?\"\ns ::= s s | \"a\""});
  ASSERT_TRUE(ambiguous.ok()) << ambiguous.status().message();
  const std::vector<std::int32_t> end_tokens = *(*engine)->encode("?", false);
  std::mutex mutex;
  std::condition_variable changed;
  Status end;
  int open = 2;
  std::int32_t beside = 0;
  const auto submit = [&](std::shared_ptr<const Grammar> grammar, const auto& on_event) {
    GenerateRequest request = request_of(**engine, "Say a:", std::move(grammar));
    request.sampling.max_tokens = 4000;
    request.sampling.ignore_eos = true;
    for (const std::int32_t token : end_tokens) request.sampling.logit_bias.emplace_back(token, -100.0f);
    const auto id = (*engine)->submit(request, [&, on_event](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      on_event(event);
      if (event.finish == FinishReason::kNone) return;
      --open;
      changed.notify_all();
    });
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    if (!id.ok()) --open;
  };
  submit(*ambiguous, [&](const GenerationEvent& event) { end = event.error; });
  submit(nullptr, [&](const GenerationEvent& event) { beside += static_cast<std::int32_t>(event.tokens.size()); });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return open == 0; });
  EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.to_string();
  EXPECT_NE(end.message().find("too much work"), std::string::npos) << end.message();
  EXPECT_EQ(beside, 4000);
  lock.unlock();
  // Pages are given back behind the last event.
  const auto held = [&] {
    const EngineStats stats = (*engine)->stats();
    return stats.pages_total - stats.pages_free - stats.pages_cached;
  };
  for (int i = 0; i < 1000 && held() != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(held(), 0);
}

TEST(EngineGrammar, RefusesWhatCannotBeKeptTo) {
  EngineOptions options;
  options.kv_cache_bytes = 16 << 20;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto refused = (*engine)->compile_grammar({GrammarKind::kJsonSchema, R"({"not":{}})"});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("not"), std::string::npos);
}

}  // namespace
}  // namespace fovea
