// `fovea bench attention --device cuda:N --suite ladder`. Called by bench/attention_cuda.cc.
#pragma once

#include "bench/cuda.h"
#include "bench/report.h"

namespace fovea::app {

// TFLOP/s of each kernel of jit/ladder_spec.h that the GPU runs: one causal prompt of 8,192 tokens, 32/8 heads of 128,
// bf16. kInternal when a kernel's outputs are not those of the first one.
Status bench_ladder(const CudaBench& bench, const CudaLimits& limits, BenchReport& report);

}  // namespace fovea::app
