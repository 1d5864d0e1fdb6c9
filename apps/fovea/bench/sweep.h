// `fovea bench attention --suite sweep`: shapes drawn at random (workload/sweep_cases.h), each beside its floor; suite
// cliffs alike, whose shapes are known. Used by bench/attention.cc; the devices are bench/device_case.h and, for the
// CPU, the public Attention.
#pragma once

#include <vector>

#include "bench/attention.h"
#include "workload/attention_cases.h"

namespace fovea::app {

// The cases that the flags ask for: small ones on the CPU.
std::vector<MeasuredCase> sweep_of(const BenchAttentionFlags& flags);
Status bench_sweep(const BenchAttentionFlags& flags);

}  // namespace fovea::app
