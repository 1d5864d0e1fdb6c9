// Reading, making and spelling out traces; see request_trace.h.
#include "workload/request_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr double kMostMs = 1e15;
constexpr double kLongestMs = 1e10;       // from the first request to the last: months
constexpr std::int32_t kFirstToken = 16;  // past those that mean something special

std::size_t num_blocks(std::int64_t tokens) {
  return static_cast<std::size_t>((tokens + TraceRequest::kBlockTokens - 1) / TraceRequest::kBlockTokens);
}

Result<TraceRequest> read_request(const JsonReader& row) {
  TraceRequest request;
  FOVEA_ASSIGN_OR_RETURN(request.arrival_ms, row.number("timestamp"));
  if (!(request.arrival_ms >= 0.0 && request.arrival_ms < kMostMs)) {
    return invalid_argument("{} is {}, expected milliseconds from 0 on", row.path("timestamp"), request.arrival_ms);
  }
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t prompt, row.integer("input_length", 1, kMostTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t answer, row.integer("output_length", 0, kMostTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int64_t> ids, row.integers("hash_ids"));
  if (ids.size() != num_blocks(prompt)) {
    return invalid_argument("{} has {} numbers, expected {}: one for each {} tokens of input_length {}",
                            row.path("hash_ids"), ids.size(), num_blocks(prompt), TraceRequest::kBlockTokens, prompt);
  }
  request.prompt_tokens = static_cast<std::int32_t>(prompt);
  request.answer_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(answer, 1));
  for (const std::int64_t id : ids) request.hash_ids.push_back(static_cast<std::uint64_t>(id));
  return request;
}

// Gives prompts their blocks: numbers of a chain that others stand on too, then new ones.
class TraceMaker {
 public:
  explicit TraceMaker(std::uint64_t seed) : random_(seed) {}

  PhiloxRng& random() { return random_; }
  // exp(normal) with that middle value, between 1 and `most`.
  std::int32_t tokens(double median, double sigma, std::int32_t most) {
    const double drawn = median * std::exp(sigma * static_cast<double>(random_.next_normal()));
    return static_cast<std::int32_t>(std::clamp(drawn, 1.0, static_cast<double>(most)));
  }
  std::vector<std::uint64_t> chain(std::size_t blocks) { return extended({}, blocks); }
  std::vector<std::uint64_t> extended(std::vector<std::uint64_t> chain, std::size_t blocks) {
    while (chain.size() < blocks) chain.push_back(next_id_++);
    return chain;
  }
  // Behind the whole blocks of `chain`, which are `tokens` long, comes what is new.
  void add(std::vector<std::uint64_t> chain, std::int32_t tokens, std::int32_t prompt, std::int32_t answer) {
    chain.resize(std::min(chain.size(), static_cast<std::size_t>(tokens / TraceRequest::kBlockTokens)));
    clock_ms_ -= 1000.0 * std::log(1.0 - random_.next_double());
    trace_.push_back({clock_ms_, prompt, answer, extended(std::move(chain), num_blocks(prompt))});
  }
  const std::vector<TraceRequest>& trace() const { return trace_; }
  // Timestamps count from the first request on.
  std::vector<TraceRequest> finish() {
    for (std::size_t i = trace_.size(); i-- > 0;) trace_[i].arrival_ms -= trace_[0].arrival_ms;
    return std::move(trace_);
  }

 private:
  PhiloxRng random_;
  std::uint64_t next_id_ = 0;
  double clock_ms_ = 0.0;
  std::vector<TraceRequest> trace_;
};

constexpr std::int32_t kMostPrompt = 120'000;

}  // namespace

Result<std::vector<TraceRequest>> parse_trace(std::string_view text, std::string_view where) {
  std::vector<TraceRequest> trace;
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{} line {}", where, line_number);
    FOVEA_ASSIGN_OR_RETURN(const Json json, parse_json(line, place));
    FOVEA_ASSIGN_OR_RETURN(const JsonReader row, JsonReader::create(json, place));
    FOVEA_ASSIGN_OR_RETURN(TraceRequest request, read_request(row));
    if (!trace.empty() && request.arrival_ms < trace.back().arrival_ms) {
      return invalid_argument("{} is {}, expected at least the {} of the request before", row.path("timestamp"),
                              request.arrival_ms, trace.back().arrival_ms);
    }
    trace.push_back(std::move(request));
  }
  if (trace.empty()) return invalid_argument("{} has no request, expected lines of JSON", where);
  // Recordings may count from any moment, such as 1970.
  const double begin_ms = trace.front().arrival_ms;
  for (TraceRequest& request : trace) request.arrival_ms -= begin_ms;
  if (trace.back().arrival_ms > kLongestMs) {
    return invalid_argument("{} goes on for {:.0f} ms, expected at most {:.0f}; timestamp is in milliseconds", where,
                            trace.back().arrival_ms, kLongestMs);
  }
  return trace;
}

std::string trace_jsonl(const std::vector<TraceRequest>& trace) {
  std::string text;
  for (const TraceRequest& request : trace) {
    const nlohmann::ordered_json row = {{"timestamp", std::llround(request.arrival_ms)},
                                        {"input_length", request.prompt_tokens},
                                        {"output_length", request.answer_tokens},
                                        {"hash_ids", request.hash_ids}};
    text += row.dump() + "\n";
  }
  return text;
}

std::vector<TraceRequest> conversation_trace(std::int32_t requests, std::uint64_t seed) {
  constexpr std::int32_t kSystemBlocks = 5;
  constexpr std::uint32_t kSystems = 4;
  TraceMaker maker(seed);
  const std::vector<std::uint64_t> common = maker.chain(1);
  std::vector<std::vector<std::uint64_t>> systems;
  for (std::uint32_t i = 0; i < kSystems; ++i) systems.push_back(maker.extended(common, kSystemBlocks));
  std::vector<std::size_t> latest;  // request of each conversation
  for (std::int32_t i = 0; i < requests; ++i) {
    const std::int32_t message = maker.tokens(594.0, 0.69, 8192);
    const std::int32_t answer = maker.tokens(257.0, 0.8, 2048);
    // More turns than conversations, and those that were spoken in lately go on.
    const bool goes_on = !latest.empty() && maker.random().next_below(100) < 60;
    if (goes_on) {
      const auto window = static_cast<std::uint32_t>(std::min<std::size_t>(latest.size(), 64));
      std::size_t& last = latest[latest.size() - 1 - maker.random().next_below(window)];
      const TraceRequest before = maker.trace()[last];
      const std::int32_t said = before.prompt_tokens + before.answer_tokens;
      if (said + message <= kMostPrompt) {
        maker.add(before.hash_ids, before.prompt_tokens, said + message, answer);
        last = static_cast<std::size_t>(i);
        continue;
      }
    }
    const std::int32_t system = kSystemBlocks * TraceRequest::kBlockTokens;
    maker.add(systems[maker.random().next_below(kSystems)], system, system + message, answer);
    latest.push_back(static_cast<std::size_t>(i));
  }
  return maker.finish();
}

std::vector<TraceRequest> agent_trace(std::int32_t requests, std::uint64_t seed) {
  constexpr std::int32_t kBlock = TraceRequest::kBlockTokens;
  TraceMaker maker(seed);
  const std::vector<std::uint64_t> tools = maker.chain(12), checks = maker.chain(5), root = maker.chain(1);
  std::vector<std::size_t> chains;  // requests that may have a next turn
  for (std::int32_t i = 0; i < requests; ++i) {
    const std::uint32_t kind = maker.random().next_below(100);
    if (kind < 38) {
      const bool shortest = maker.random().next_below(100) < 60;
      const auto answer = static_cast<std::int32_t>(shortest ? 3 : 23 + maker.random().next_below(31));
      maker.add(tools, 12 * kBlock, 12 * kBlock + maker.tokens(400.0, 0.6, 4096), answer);
    } else if (kind < 50) {
      const std::int32_t answer = maker.tokens(20.0, 0.3, 64);
      maker.add(checks, 5 * kBlock, 5 * kBlock + maker.tokens(600.0, 0.4, 4096), answer);
    } else {
      const std::int32_t answer = maker.tokens(300.0, 0.7, 2048);
      const std::int32_t fresh = maker.tokens(6700.0, 0.9, 100'000);
      if (!chains.empty() && maker.random().next_below(100) < 30) {
        const auto at = static_cast<std::size_t>(maker.random().next_below(static_cast<std::uint32_t>(chains.size())));
        const TraceRequest before = maker.trace()[chains[at]];
        const std::int32_t said = before.prompt_tokens + before.answer_tokens;
        const std::int32_t result = maker.tokens(800.0, 0.8, 8192);  // of the tool that it called
        if (said + result <= kMostPrompt) {
          maker.add(before.hash_ids, before.prompt_tokens, said + result, answer);
          chains[at] = static_cast<std::size_t>(i);
          continue;
        }
      }
      maker.add(root, kBlock, kBlock + fresh, answer);
      chains.push_back(static_cast<std::size_t>(i));
    }
  }
  return maker.finish();
}

std::int32_t scaled_tokens(std::int32_t tokens, double scale) {
  return static_cast<std::int32_t>(std::clamp(std::round(tokens * scale), 1.0, static_cast<double>(kMostTokens)));
}

std::vector<std::int32_t> trace_prompt(const TraceRequest& request, std::int32_t vocab_size, std::uint64_t seed,
                                       double scale) {
  const std::int32_t block = scaled_tokens(TraceRequest::kBlockTokens, scale);
  // The last block keeps its share of the prompt, so that blocks and prompt end together.
  const auto whole = static_cast<std::int32_t>(request.hash_ids.size()) - 1;
  const std::int32_t rest = request.prompt_tokens - whole * TraceRequest::kBlockTokens;
  const auto bound = static_cast<std::uint32_t>(std::max(vocab_size - kFirstToken, 1));
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i <= whole && prompt.size() < static_cast<std::size_t>(kMostTokens); ++i) {
    PhiloxRng random(seed, request.hash_ids[static_cast<std::size_t>(i)]);
    const std::int32_t count = i < whole ? block : std::min(block, scaled_tokens(rest, scale));
    for (std::int32_t t = 0; t < count; ++t) {
      prompt.push_back(std::min(kFirstToken + static_cast<std::int32_t>(random.next_below(bound)), vocab_size - 1));
    }
  }
  return prompt;
}

}  // namespace fovea
