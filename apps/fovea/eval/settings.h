// Settings of an engine by name, as `fovea eval needle --settings` takes them: what selects pages, what streams, what
// the KV cache holds. Read by eval/sweep.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine.h"

namespace fovea::app {

struct EvalSetting {
  std::string name;
  EngineOptions engine;  // whole: what an engine made for this setting alone would get
};

// Parts joined by '+', each of:
//   dense                     nothing; for a setting that has no other part
//   POLICY, POLICY:BUDGET     page selection, "fovea:T/16"; without a budget that of `base`
//   every:N, keep:N           with a policy: a scan at every Nth step, candidates rescored, or lists kept, in between
//   prefill:BUDGET            with a policy: prompts read so much
//   streaming, streaming:WHAT the heads of WHAT stream (EngineOptions::streaming); without WHAT those of `base`, or
//   auto bf16, f16, f32, fp8, int8, int4, int4-hadamard   elements of the KV cache
// and "all" for those of all_eval_settings(). What a setting does not say is as in `base`, which selects nothing.
// kInvalidArgument names the part.
Result<std::vector<EvalSetting>> parse_eval_settings(std::string_view list, const EngineOptions& base);

// "dense,random,lserve,...": the comparisons of docs/measurements/long-context.md.
std::string_view all_eval_settings();

// Indices of settings that one engine can serve, request by request: they differ in policy and budget only and need
// the same statistics, or none. `engine` is what that engine is made with.
struct EvalGroup {
  EngineOptions engine;
  std::vector<std::size_t> settings;
};
std::vector<EvalGroup> group_eval_settings(const std::vector<EvalSetting>& settings);

}  // namespace fovea::app
