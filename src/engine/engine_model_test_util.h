// What tests of the engine with models of random weights share: configurations, requests, and running them to the end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "engine/engine_core.h"
#include "engine/model/head_profile.h"

namespace fovea {

using Tokens = std::vector<std::int32_t>;

struct Answer {
  Tokens tokens;
  std::vector<float> logprobs;
  std::int32_t cached = 0;
  FinishReason finish = FinishReason::kNone;
  friend bool operator==(const Answer& a, const Answer& b) { return a.tokens == b.tokens && a.logprobs == b.logprobs; }
};

// Of this process: the same test may run twice at a time.
inline std::filesystem::path temp_config(const std::string& name) {
  return std::filesystem::temp_directory_path() / ("fovea_" + name + "_" + std::to_string(getpid()) + "_config.json");
}

// config.json of a golden model with a context of 2048, another window and, if asked for, another number of KV heads.
inline std::string config_of(const std::string& golden, std::int32_t kv_heads = 0) {
  auto text = read_file(std::string(FOVEA_SOURCE_DIR) + "/tests/goldens/models/" + golden + "/config.json", 1 << 16);
  EXPECT_TRUE(text.ok()) << text.status().message();
  Json config = Json::parse(*text);
  config["max_position_embeddings"] = 2048;
  if (config.contains("sliding_window") && config["sliding_window"].is_number()) config["sliding_window"] = 100;
  if (kv_heads > 0) config["num_key_value_heads"] = kv_heads;
  return config.dump();
}

// An engine of random weights.
inline Result<std::unique_ptr<EngineCore>> create_engine(const std::string& config_path,
                                                         const std::optional<HeadProfile>& streaming,
                                                         const EngineOptions& options,
                                                         std::shared_ptr<ProcessGroup> group = nullptr,
                                                         const KeyCodes* codes = nullptr,
                                                         std::function<double()> clock = nullptr) {
  EngineParts parts;
  parts.clock = std::move(clock);
  if (codes != nullptr) parts.key_codes = *codes;
  parts.options = options;
  parts.name = "random";
  DeviceOptions device;
  device.num_threads = options.num_threads;
  device.batch_invariant = options.batch_invariant;
  device.simd = options.simd;
  device.group = std::move(group);
  FOVEA_ASSIGN_OR_RETURN(parts.device, create_device(options.device, device));
  ModelLoadOptions load;
  load.format = LoadFormat::kDummy;
  load.max_forward_tokens = options.chunk_tokens;
  load.streaming = streaming;
  FOVEA_ASSIGN_OR_RETURN(parts.model, load_model(config_path, *parts.device, load));
  return EngineCore::create(std::move(parts));
}

// The answer of a request of one choice.
inline Answer ask(EngineCore& engine, const GenerateRequest& request) {
  Answer answer;
  std::promise<void> ended;
  const auto id = engine.submit(request, [&](const GenerationEvent& event) {
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const TokenLogprob& logprob : event.logprobs) answer.logprobs.push_back(logprob.logprob);
    answer.finish = event.finish;
    answer.cached = event.cached_tokens;
    EXPECT_NE(event.finish, FinishReason::kError) << event.error.message();
    if (event.finish != FinishReason::kNone) ended.set_value();
  });
  EXPECT_TRUE(id.ok()) << id.status().message();
  if (id.ok()) ended.get_future().wait();
  return answer;
}

// The answers of all choices, in order. cancel_at: by request, tokens of a choice after which it is cancelled; 0:
// never.
inline std::vector<Answer> run(const std::string& config_path, const std::optional<HeadProfile>& streaming,
                               const EngineOptions& options, const std::vector<GenerateRequest>& requests,
                               bool together, EngineStats& stats, const std::vector<std::size_t>& cancel_at = {},
                               std::shared_ptr<ProcessGroup> group = nullptr, const KeyCodes* codes = nullptr,
                               std::function<double()> clock = nullptr) {
  auto created = create_engine(config_path, streaming, options, std::move(group), codes, std::move(clock));
  EXPECT_TRUE(created.ok()) << created.status().message();
  if (!created.ok()) return {};
  EngineCore& engine = **created;

  std::size_t choices = 0;
  for (const GenerateRequest& request : requests) choices += static_cast<std::size_t>(request.n);
  std::vector<Answer> answers(choices);
  std::vector<RequestId> ids(requests.size(), 0);
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ended = 0;
  std::size_t submitted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::size_t first = submitted;
    submitted += static_cast<std::size_t>(requests[i].n);
    const auto id = engine.submit(requests[i], [&, i, first](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      Answer& answer = answers[first + static_cast<std::size_t>(event.choice)];
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      for (const TokenLogprob& logprob : event.logprobs) answer.logprobs.push_back(logprob.logprob);
      answer.finish = event.finish;
      answer.cached = event.cached_tokens;
      EXPECT_NE(event.finish, FinishReason::kError) << event.error.message();
      if (event.finish != FinishReason::kNone) ++ended;
      if (i < cancel_at.size() && answer.tokens.size() == cancel_at[i]) engine.cancel(ids[i]);
      changed.notify_all();
    });
    EXPECT_TRUE(id.ok()) << id.status().message();
    std::unique_lock lock(mutex);
    if (id.ok()) ids[i] = *id;
    ended += id.ok() ? 0 : static_cast<std::size_t>(requests[i].n);
    changed.wait(lock, [&] { return together || ended >= submitted; });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == choices; });
  lock.unlock();
  const Status intact = engine.check_integrity();
  EXPECT_TRUE(intact.ok()) << intact.message();
  engine.flush_cache();
  EXPECT_TRUE(engine.check_integrity().ok());
  EXPECT_TRUE(engine.check_integrity().ok());
  stats = engine.stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.kv_bytes_in_use, 0);  // of any group
  return answers;
}

inline HeadProfile profile(std::int32_t local, std::int32_t prefill_local, std::vector<ModelHead> heads) {
  return {"test", 64, local, prefill_local, std::move(heads)};
}

// Requests over random tokens, of lengths around the budget of 256.
inline std::vector<GenerateRequest> selecting_requests() {
  PhiloxRng rng(21);
  Tokens document;
  for (int i = 0; i < 900; ++i) document.push_back(static_cast<std::int32_t>(rng.next_below(128)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest request;
    const int lengths[] = {100, 240, 700, 899};
    request.prompt.assign(document.begin(), document.begin() + lengths[i % 4]);
    for (int n = 0; n < 7 + i; ++n) request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(128)));
    request.sampling.max_tokens = 24;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.sampling.logprobs = 0;
    request.sparse_prompt_tokens = i % 2 == 0 ? 5 : 0;
    requests.push_back(request);
  }
  return requests;
}

inline EngineOptions selecting_options(const std::string& policy) {
  EngineOptions options;
  options.batch_invariant = true;
  options.chunk_tokens = 512;
  options.kv_cache_bytes = 64 << 20;
  options.sparse = policy;
  options.kv_budget = "256";
  options.num_threads = 2;
  options.itl_target_ms = 0.0f;  // what is read does not depend on how fast the machine is
  return options;
}

}  // namespace fovea
