// The declaring function of every command; commands.cc lists them.
#pragma once

#include "command.h"

namespace fovea::app {

RunFunction declare_serve(Options& options);
RunFunction declare_generate(Options& options);
RunFunction declare_chat(Options& options);
RunFunction declare_demo(Options& options);
RunFunction declare_bench_serve(Options& options);
RunFunction declare_bench_attention(Options& options);
RunFunction declare_bench_ops(Options& options);
RunFunction declare_bench_model(Options& options);
RunFunction declare_bench_plan(Options& options);
RunFunction declare_completion(Options& options);
RunFunction declare_doctor(Options& options);
RunFunction declare_eval_compare(Options& options);
RunFunction declare_eval_needle(Options& options);
RunFunction declare_profile_heads(Options& options);
RunFunction declare_profile_keys(Options& options);
RunFunction declare_plan_explain(Options& options);
RunFunction declare_warmup(Options& options);

}  // namespace fovea::app
