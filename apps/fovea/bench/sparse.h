// `fovea bench attention --device cuda:N --suite sparse`: a decode step over selected pages. Called by
// bench/attention_cuda.cc.
#pragma once

#include "bench/cuda.h"
#include "bench/report.h"

namespace fovea::app {

// One layer of 32/8 heads of 128, 131072 tokens a request, budget 4096: a selection, a rescoring, attention over the
// lists, what a step costs with reuse across 4 steps; and attention up to the budget beside plan()'s. kInternal where
// the latter are not the same bits.
Status bench_cuda_sparse(const CudaBench& bench, const CudaLimits& limits, BenchReport& report);

}  // namespace fovea::app
