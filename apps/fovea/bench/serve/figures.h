// What a load's times mean, in the terms of the field: time to first token (TTFT), between tokens (ITL), a token after
// the first (TPOT: (end - first token) / (tokens - 1)), end to end, throughput, goodput (requests a second that meet
// every target), and the step: the gap between tokens while all streams decode. Used by `fovea bench serve`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/serve/load.h"
#include "fovea/status.h"

namespace fovea::app {

struct Targets {
  double ttft_ms = 0.0, tpot_ms = 0.0;  // 0: none
  bool any() const { return ttft_ms > 0.0 || tpot_ms > 0.0; }
};

// What the machine and the model allow; zeros: not known.
struct Roofline {
  double read_rate = 0.0;       // bytes a second
  double compute_rate = 0.0;    // floating-point operations a second
  double weight_bytes = 0.0;    // read by a step
  double parameters = 0.0;      // that a token is multiplied with
  double token_kv_bytes = 0.0;  // of a token's keys and values

  // Least seconds of a step of `rows` tokens over so many tokens of KV, each read once.
  double step_seconds(double rows, double kv_tokens) const;
};

struct LatencyFigures {
  std::vector<double> ttft, tpot, itl, e2e;  // seconds; tpot and itl of choices
  std::vector<double> itl_alone;             // where some requests disturb: of the others while none of those is there
  std::int64_t tokens = 0, good = 0, answered = 0, failed = 0, choices = 0;
  std::string first_error;
};
LatencyFigures latency_figures(const std::vector<LoadRequest>& requests, const LoadResult& result,
                               const Targets& targets);

// While every choice of every request decodes.
struct DecodeWindow {
  double step_seconds = 0.0;   // median
  double tokens_before = 0.0;  // that a choice had generated in its middle, on average
};
// None: they were never all there for 4 tokens.
std::optional<DecodeWindow> decode_window(const LoadResult& result);

// The smallest value that at least `share` of them do not exceed; 0 of none.
double percentile(std::vector<double> values, double share);

// Adds the rows of one case. kUnavailable: every request failed.
Status add_figures(BenchReport* report, const std::string& name, const std::vector<LoadRequest>& requests,
                   const LoadResult& result, const Targets& targets, const Roofline& roofline);

}  // namespace fovea::app
