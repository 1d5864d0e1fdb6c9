// The requests that `fovea bench serve` sends: from a trace's file, or made from a seed by the workload's name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/serve/load.h"
#include "fovea/status.h"
#include "workload/request_trace.h"

namespace fovea::app {

struct WorkloadOptions {
  std::int32_t requests = 32;
  std::int32_t prompt_tokens = 512;     // of "random"
  std::int32_t shared_tokens = 0;       // ..., of them the same in every prompt
  std::int32_t max_tokens = 64;         // of "random"'s answers
  std::int32_t streams = 32;            // of "interrupted": answers that run,
  std::int32_t arriving_tokens = 8192;  // ..., and prompts that come meanwhile, each answered by a token
  double length_scale = 1.0;            // of all lengths; blocks that are shared are scaled too
  std::uint64_t seed = 0;
};

// "random", "sharegpt", "long", "conversation", "agent", "interrupted".
const std::vector<std::string_view>& workload_names();
// kInvalidArgument: none of them.
Status check_workload(std::string_view name);

// `trace` (may be empty): the requests instead of those that the name means, as many of them as options.requests say.
// No prompt is longer than max_context (0: any) leaves room for; arrivals are the trace's, in seconds.
Result<std::vector<LoadRequest>> make_workload(std::string_view name, const std::vector<TraceRequest>& trace,
                                               const WorkloadOptions& options, std::int32_t vocab_size,
                                               std::int32_t max_context);

// Tokens of prompts that begin alike are counted once.
std::int64_t unique_prompt_tokens(const std::vector<LoadRequest>& requests);

// Poisson arrivals, `rate` of them a second; where some disturb, the others all come at once.
void set_poisson_arrivals(std::vector<LoadRequest>* requests, double rate, std::uint64_t seed);

}  // namespace fovea::app
