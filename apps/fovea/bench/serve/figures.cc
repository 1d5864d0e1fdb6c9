// Percentiles, goodput and the share of the roofline; see bench/serve/figures.h.
#include "bench/serve/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "bench/serve/workload.h"

namespace fovea::app {
namespace {

constexpr std::size_t kLeastGaps = 4;

// Of a choice that came to an end; 0 with fewer than two tokens or chunks.
double seconds_per_token(const ChoiceTimes& choice) {
  if (choice.tokens < 2 || choice.chunk_s.size() < 2) return 0.0;
  return (choice.chunk_s.back() - choice.chunk_s.front()) / static_cast<double>(choice.tokens - 1);
}

// While prompts that disturb streams are there, and since when those all run; always and ever where none does.
struct Span {
  double all_run = 0.0, begin = 0.0, end = 1e300;
  bool some = false;
};
Span disturbed_span(const std::vector<LoadRequest>& requests, const LoadResult& result) {
  Span span{0.0, 1e300, 0.0, false};
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    for (const ChoiceTimes& choice : result.requests[i].choices) {
      if (choice.chunk_s.empty()) continue;
      if (!requests[i].disturbs) {
        span.all_run = std::max(span.all_run, choice.chunk_s.front());
        continue;
      }
      span.some = true;
      span.begin = std::min(span.begin, result.requests[i].sent_s);
      span.end = std::max(span.end, choice.chunk_s.front());
    }
  }
  return span.some ? span : Span{};
}

class Rows {
 public:
  Rows(BenchReport* report, std::string name) : report_(report), name_(std::move(name)) {}

  void add(std::string metric, double value, const char* unit, bool smaller_is_better,
           std::optional<double> limit = std::nullopt) {
    BenchRow row{"serve", name_, std::move(metric), value, unit, limit, "", std::nullopt, smaller_is_better};
    report_->add(std::move(row));
  }
  void add_times(const char* metric, const std::vector<double>& seconds) {
    if (seconds.empty()) return;
    for (const auto& [suffix, share] : {std::pair("p50", 0.5), std::pair("p90", 0.9), std::pair("p99", 0.99)}) {
      add(fmt::format("{}_{}", metric, suffix), 1e3 * percentile(seconds, share), "ms", true);
    }
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    add(fmt::format("{}_mean", metric), 1e3 * sum / static_cast<double>(seconds.size()), "ms", true);
  }

 private:
  BenchReport* report_;
  std::string name_;
};

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  const double rank = std::ceil(share * static_cast<double>(values.size())) - 1.0;
  const auto at = static_cast<std::ptrdiff_t>(std::max(rank, 0.0));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

double Roofline::step_seconds(double rows, double kv_tokens) const {
  if (read_rate <= 0.0) return 0.0;
  const double products = compute_rate > 0.0 ? 2.0 * parameters * rows / compute_rate : 0.0;
  return std::max(weight_bytes / read_rate, products) + kv_tokens * token_kv_bytes / read_rate;
}

LatencyFigures latency_figures(const std::vector<LoadRequest>& requests, const LoadResult& result,
                               const Targets& targets) {
  LatencyFigures out;
  const Span disturbed = disturbed_span(requests, result);
  for (std::size_t r = 0; r < result.requests.size(); ++r) {
    const RequestTimes& request = result.requests[r];
    const bool watched = !disturbed.some || !requests[r].disturbs;
    const bool silent = std::all_of(request.choices.begin(), request.choices.end(),
                                    [](const ChoiceTimes& choice) { return choice.chunk_s.empty(); });
    if (!request.error.ok() || silent) {
      const std::string error(request.error.ok() ? "it gave no token" : request.error.message());
      if (out.failed++ == 0) out.first_error = error;
      continue;
    }
    ++out.answered;
    double first = 1e300, last = 0.0, slowest = 0.0;
    for (const ChoiceTimes& choice : request.choices) {
      out.tokens += choice.tokens;
      ++out.choices;
      if (choice.chunk_s.empty()) continue;
      first = std::min(first, choice.chunk_s.front());
      last = std::max(last, choice.chunk_s.back());
      const double each = seconds_per_token(choice);
      if (each > 0.0 && watched) out.tpot.push_back(each);
      slowest = std::max(slowest, each);
      for (std::size_t i = 1; i < choice.chunk_s.size(); ++i) {
        if (!watched || choice.chunk_s[i - 1] < disturbed.all_run) continue;
        const bool alone = choice.chunk_s[i] < disturbed.begin || choice.chunk_s[i - 1] > disturbed.end;
        (alone ? out.itl_alone : out.itl).push_back(choice.chunk_s[i] - choice.chunk_s[i - 1]);
      }
    }
    const double ttft = first - request.sent_s;
    if (!disturbed.some || requests[r].disturbs) out.ttft.push_back(ttft);
    out.e2e.push_back(last - request.sent_s);
    const bool in_time = targets.ttft_ms <= 0.0 || 1e3 * ttft <= targets.ttft_ms;
    out.good += in_time && (targets.tpot_ms <= 0.0 || 1e3 * slowest <= targets.tpot_ms) ? 1 : 0;
  }
  return out;
}

std::optional<DecodeWindow> decode_window(const LoadResult& result) {
  const ChoiceTimes* latest = nullptr;
  double end = 1e300;
  for (const RequestTimes& request : result.requests) {
    if (!request.error.ok()) return std::nullopt;
    for (const ChoiceTimes& choice : request.choices) {
      if (choice.chunk_s.size() < 2) return std::nullopt;
      if (latest == nullptr || choice.chunk_s.front() > latest->chunk_s.front()) latest = &choice;
      end = std::min(end, choice.chunk_s.back());
    }
  }
  if (latest == nullptr) return std::nullopt;
  std::vector<double> gaps;
  for (std::size_t i = 1; i < latest->chunk_s.size() && latest->chunk_s[i] <= end; ++i) {
    gaps.push_back(latest->chunk_s[i] - latest->chunk_s[i - 1]);
  }
  if (gaps.size() < kLeastGaps) return std::nullopt;
  const double middle = latest->chunk_s[gaps.size() / 2];
  double before = 0.0, choices = 0.0;
  for (const RequestTimes& request : result.requests) {
    for (const ChoiceTimes& choice : request.choices) {
      const auto chunks = std::upper_bound(choice.chunk_s.begin(), choice.chunk_s.end(), middle);
      const double share =
          static_cast<double>(chunks - choice.chunk_s.begin()) / static_cast<double>(choice.chunk_s.size());
      before += share * static_cast<double>(choice.tokens);
      choices += 1.0;
    }
  }
  return DecodeWindow{percentile(std::move(gaps), 0.5), before / choices};
}

Status add_figures(BenchReport* report, const std::string& name, const std::vector<LoadRequest>& requests,
                   const LoadResult& result, const Targets& targets, const Roofline& roofline) {
  const LatencyFigures figures = latency_figures(requests, result, targets);
  if (figures.answered == 0) {
    return Status(StatusCode::kUnavailable, fmt::format("{}: every request failed: {}", name, figures.first_error));
  }
  Rows rows(report, name);
  rows.add_times("ttft", figures.ttft);
  rows.add_times("itl", figures.itl);
  rows.add_times("itl_alone", figures.itl_alone);
  rows.add_times("tpot", figures.tpot);
  rows.add_times("e2e", figures.e2e);
  if (const auto window = decode_window(result); window.has_value()) {
    const auto choices = static_cast<double>(figures.choices);
    const double kv = static_cast<double>(unique_prompt_tokens(requests)) + choices * window->tokens_before;
    const double floor = 1e3 * roofline.step_seconds(choices, kv);
    rows.add("step", 1e3 * window->step_seconds, "ms", true, floor > 0.0 ? std::optional(floor) : std::nullopt);
  }
  std::int64_t prompt = 0, cached = 0;
  for (const RequestTimes& request : result.requests) {
    prompt += request.prompt_tokens;
    cached += request.cached_tokens;
  }
  rows.add("output", static_cast<double>(figures.tokens) / result.seconds, "tokens/s", false);
  rows.add("input", static_cast<double>(prompt) / result.seconds, "tokens/s", false);
  if (prompt > 0) rows.add("cached", 100.0 * static_cast<double>(cached) / static_cast<double>(prompt), "%", false);
  rows.add("requests", static_cast<double>(figures.answered) / result.seconds, "1/s", false);
  if (targets.any()) {
    rows.add("goodput", static_cast<double>(figures.good) / result.seconds, "1/s", false);
    const auto asked = static_cast<double>(figures.answered + figures.failed);
    rows.add("good", 100.0 * static_cast<double>(figures.good) / asked, "%", false);
  }
  rows.add("failed", static_cast<double>(figures.failed), "requests", true);
  return ok_status();
}

}  // namespace fovea::app
