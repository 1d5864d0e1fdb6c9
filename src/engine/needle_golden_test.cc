// The engine against PyTorch, question by question: greedy answers of models/needle/goldens.json (made by
// tools/needle/export.py in fp32), with the KV cache in fp32 (every answer equal) and in bf16 (99.5 %, the margins of
// the rest printed).
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "fovea/engine.h"
#include "workload/needle/goldens_test_util.h"

namespace fovea {
namespace {

std::string answer_of(Engine& engine, const std::string& content) {
  auto prompt = engine.encode_chat({{"user", content}}, true, "");
  if (!prompt.ok()) return prompt.status().to_string();
  GenerateRequest request;
  request.prompt = std::move(*prompt);
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 48;
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;
  bool done = false;
  const auto id = engine.submit(std::move(request), [&](const GenerationEvent& event) {
    const std::lock_guard lock(mutex);
    text += event.text;
    done = done || event.finish != FinishReason::kNone;
    if (done) changed.notify_all();
  });
  if (!id.ok()) return id.status().to_string();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  return text;
}

struct Agreement {
  int asked = 0, equal = 0;
};

// Documents of at most `max_tokens`, whose answers are kept under `key` ("fp32", "bf16").
Agreement compare(DType kv_dtype, const std::string& key, int max_tokens) {
  const nlohmann::json goldens = read_needle_goldens();
  EngineOptions options;
  options.model = FOVEA_SOURCE_DIR "/models/needle";
  options.kv_dtype = kv_dtype;
  options.kv_cache_bytes = std::int64_t{256} << 20;
  options.max_context = 20000;
  auto engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  Agreement agreement;
  if (!engine.ok()) return agreement;
  for (const nlohmann::json& golden : goldens["documents"]) {
    if (golden["prefix_tokens"].get<int>() > max_tokens) continue;
    const NeedleSpec spec = golden_spec(golden);
    const NeedleDocument document = make_needle_document(spec);
    for (const nlohmann::json& asked : golden["questions_asked"]) {
      const std::string question = asked["question"];
      const std::string expected = asked[asked.contains(key) ? key : "fp32"];
      const std::string said = answer_of(**engine, document.text + "\n\n" + question);
      ++agreement.asked;
      agreement.equal += said == expected ? 1 : 0;
      if (said != expected) {
        const auto margins = asked[key + "_margins"].get<std::vector<double>>();
        printf("seed %llu: %s\n  PyTorch: %s\n  Fovea:   %s\n  smallest margin of PyTorch's logits: %.2f\n",
               static_cast<unsigned long long>(spec.seed), question.c_str(), expected.c_str(), said.c_str(),
               *std::min_element(margins.begin(), margins.end()));
      }
    }
  }
  return agreement;
}

TEST(NeedleGolden, Fp32AnswersAreThoseOfPyTorch) {
  const Agreement agreement = compare(DType::kF32, "fp32", 4200);
  EXPECT_GE(agreement.asked, 220);
  EXPECT_EQ(agreement.equal, agreement.asked);
}

TEST(NeedleGolden, Bf16AnswersAreThoseOfPyTorchInAtLeast995OfAThousand) {
  const Agreement agreement = compare(DType::kBF16, "bf16", 20000);
  EXPECT_GE(agreement.asked, 250);
  EXPECT_GE(agreement.equal * 1000, agreement.asked * 995);
}

}  // namespace
}  // namespace fovea
