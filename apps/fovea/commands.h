// The declaring function of every command; commands.cc lists them.
#pragma once

#include "command.h"

namespace fovea::app {

RunFunction declare_bench_attention(Options& options);
RunFunction declare_bench_ops(Options& options);
RunFunction declare_bench_plan(Options& options);
RunFunction declare_doctor(Options& options);
RunFunction declare_plan_explain(Options& options);

}  // namespace fovea::app
