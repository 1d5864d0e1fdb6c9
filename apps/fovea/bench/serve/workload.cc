// Prompts and lengths of the named workloads; see bench/serve/workload.h.
#include "bench/serve/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"

namespace fovea::app {
namespace {

// Between 4 and `most`, with that middle value.
std::int32_t log_normal(PhiloxRng& random, double median, double sigma, double most) {
  const double drawn = median * std::exp(sigma * static_cast<double>(random.next_normal()));
  return static_cast<std::int32_t>(std::clamp(drawn, 4.0, most));
}

// A request without blocks that others have.
TraceRequest own_request(std::int32_t prompt_tokens, std::int32_t answer_tokens) {
  return TraceRequest{0.0, prompt_tokens, answer_tokens, {}};
}

// Lengths only: prompts are random.
std::vector<TraceRequest> drawn_lengths(std::string_view name, const WorkloadOptions& options) {
  PhiloxRng random(options.seed, 1);
  std::vector<TraceRequest> lengths;
  for (std::int32_t i = 0; i < options.requests; ++i) {
    if (name == "sharegpt") {
      // Means of 217 and 200 tokens, at most 1,024 of each, as benchmarks cut that set.
      const std::int32_t prompt = log_normal(random, 110.0, 1.2, 1024.0);
      lengths.push_back(own_request(prompt, log_normal(random, 150.0, 0.9, 1024.0)));
    } else if (name == "long") {
      // Evenly spread over sizes: as many between 4k and 8k as between 16k and 32k.
      const double prompt = 4096.0 * std::exp2(3.0 * random.next_double());
      lengths.push_back(own_request(static_cast<std::int32_t>(prompt), log_normal(random, 150.0, 0.5, 512.0)));
    } else {
      lengths.push_back(name == "interrupted" ? own_request(options.arriving_tokens, 1)
                                              : own_request(options.prompt_tokens, options.max_tokens));
    }
  }
  if (name != "interrupted") return lengths;
  const auto streams = static_cast<std::size_t>(options.streams);
  lengths.insert(lengths.begin(), streams, own_request(options.prompt_tokens, options.max_tokens));
  return lengths;
}

std::vector<std::int32_t> random_tokens(std::int32_t count, std::int32_t vocab_size, PhiloxRng& random) {
  std::vector<std::int32_t> tokens;
  const std::int32_t first = std::min(16, vocab_size - 1);  // past the special tokens
  const auto bound = static_cast<std::uint32_t>(vocab_size - first);
  for (std::int32_t i = 0; i < count; ++i)
    tokens.push_back(first + static_cast<std::int32_t>(random.next_below(bound)));
  return tokens;
}

}  // namespace

const std::vector<std::string_view>& workload_names() {
  static const std::vector<std::string_view> names = {"random",       "sharegpt", "long",
                                                      "conversation", "agent",    "interrupted"};
  return names;
}

Status check_workload(std::string_view name) {
  const auto& names = workload_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return ok_status();
  return invalid_argument("--workload is {}, expected random, sharegpt, long, conversation, agent or interrupted",
                          quote(name));
}

Result<std::vector<LoadRequest>> make_workload(std::string_view name, const std::vector<TraceRequest>& trace,
                                               const WorkloadOptions& options, std::int32_t vocab_size,
                                               std::int32_t max_context) {
  if (trace.empty()) FOVEA_RETURN_IF_ERROR(check_workload(name));
  std::vector<TraceRequest> made = trace;
  if (trace.empty()) {
    made = name == "conversation" ? conversation_trace(options.requests, options.seed)
           : name == "agent"      ? agent_trace(options.requests, options.seed)
                                  : drawn_lengths(name, options);
  }
  const bool interrupted = name == "interrupted" && trace.empty();
  if (!interrupted) made.resize(std::min(made.size(), static_cast<std::size_t>(options.requests)));
  PhiloxRng random(options.seed, 2);
  std::vector<std::int32_t> shared;
  if (name == "random" && options.shared_tokens > 0) {
    shared = random_tokens(scaled_tokens(options.shared_tokens, options.length_scale), vocab_size, random);
  }
  std::vector<LoadRequest> requests;
  for (const TraceRequest& from : made) {
    LoadRequest& request = requests.emplace_back();
    request.arrival_s = from.arrival_ms * 1e-3;
    request.disturbs = interrupted && requests.size() > static_cast<std::size_t>(options.streams);
    request.max_tokens = scaled_tokens(from.answer_tokens, options.length_scale);
    if (!from.hash_ids.empty()) {
      request.prompt = trace_prompt(from, vocab_size, options.seed, options.length_scale);
    } else {
      const std::int32_t count = scaled_tokens(from.prompt_tokens, options.length_scale);
      request.prompt = shared;
      const std::int32_t own = std::max(count - static_cast<std::int32_t>(request.prompt.size()), 0);
      const std::vector<std::int32_t> tokens = random_tokens(own, vocab_size, random);
      request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
    }
    if (max_context <= 0) continue;
    request.max_tokens = std::min(request.max_tokens, max_context - 1);
    const auto room = static_cast<std::size_t>(max_context - request.max_tokens);
    if (request.prompt.size() <= room) continue;
    if ((name == "random" || interrupted) && trace.empty()) {
      return invalid_argument("prompts of {} tokens and answers of {} do not fit the model's {} tokens",
                              request.prompt.size(), request.max_tokens, max_context);
    }
    request.prompt.resize(room);
  }
  return requests;
}

std::int64_t unique_prompt_tokens(const std::vector<LoadRequest>& requests) {
  std::vector<const std::vector<std::int32_t>*> sorted;
  for (const LoadRequest& request : requests) sorted.push_back(&request.prompt);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return *a < *b; });
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    tokens += static_cast<std::int64_t>(sorted[i]->size());
    if (i == 0) continue;
    const auto& before = *sorted[i - 1];
    const auto most = static_cast<std::ptrdiff_t>(std::min(before.size(), sorted[i]->size()));
    tokens -= std::mismatch(before.begin(), before.begin() + most, sorted[i]->begin()).first - before.begin();
  }
  return tokens;
}

void set_poisson_arrivals(std::vector<LoadRequest>* requests, double rate, std::uint64_t seed) {
  PhiloxRng random(seed, 3);
  const bool some_disturb =
      std::any_of(requests->begin(), requests->end(), [](const LoadRequest& request) { return request.disturbs; });
  double at = 0.0;
  for (LoadRequest& request : *requests) {
    request.arrival_s = some_disturb&& !request.disturbs ? 0.0 : at -= std::log(1.0 - random.next_double()) / rate;
  }
}

}  // namespace fovea::app
