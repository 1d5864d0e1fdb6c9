// Attention cases drawn at random from what engines run, for `fovea bench attention --suite sweep`: a grid shows only
// the shapes that somebody thought of.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/attention_cases.h"

namespace fovea {

// Of a case on a GPU.
inline constexpr double kMostSweepBytes = 1.6e9;

// The same numbers give the same cases, on every machine. most_kv_bytes: of the distinct KV of a case, which is drawn
// from a fortieth of that on.
std::vector<MeasuredCase> sweep_cases(std::uint64_t seed, std::int32_t count, double most_kv_bytes);

// Query tokens of the longest request, which tells decodes and drafts from prefills.
std::int32_t most_q_tokens(const MeasuredCase& c);

}  // namespace fovea
