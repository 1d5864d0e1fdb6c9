// What `fovea bench serve` sends and what comes back: requests, how they arrive, and the times of their tokens. The two
// ways in are LoadTargets: an engine of this process, and a server over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine_flags.h"
#include "fovea/engine_view.h"
#include "fovea/status.h"
#include "server/http/client.h"

namespace fovea::app {

struct LoadRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = 1;  // and no fewer
  double arrival_s = 0.0;       // open loop: after the load's begin
  // It comes while others are being answered, and what they feel of it is asked: TTFT is of requests like this, ITL and
  // TPOT of the others while there are any.
  bool disturbs = false;
};

struct ChoiceTimes {
  std::vector<double> chunk_s;  // when text or tokens came, after the load's begin
  std::int64_t tokens = 0;
};

struct RequestTimes {
  double sent_s = 0.0;  // after the load's begin
  std::vector<ChoiceTimes> choices;
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
  Status error;
};

struct LoadResult {
  std::vector<RequestTimes> requests;  // in the order of LoadRequests
  double seconds = 0.0;                // from the first request's begin to the last one's end
};

// How requests come: so many clients, each of which asks again at once, or, with none, by arrival_s.
struct LoadShape {
  std::int32_t clients = 0;
  std::int32_t choices = 1;
};

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // A request that fails says so in its times.
  virtual LoadResult run(std::span<const LoadRequest> requests, const LoadShape& shape) = 0;
  virtual void forget_prefixes() = 0;
  virtual std::int32_t vocab_size() const = 0;
  virtual std::int32_t max_context() const = 0;  // 0: not known
  // Of an engine of this process, else null.
  virtual const Engine* engine() const { return nullptr; }
  // What steps did while most requests were running, where the engine keeps a log (EngineOptions::step_log).
  virtual std::vector<StepSpan> steps() const { return {}; }
};

// watch: keep what steps() tells.
std::unique_ptr<LoadTarget> engine_target(std::unique_ptr<Engine> engine, bool watch);
Result<std::unique_ptr<LoadTarget>> http_target(const server::Url& address);

}  // namespace fovea::app
