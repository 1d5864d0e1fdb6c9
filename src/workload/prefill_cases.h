// The cases of many query tokens that prefill is measured on: `fovea bench attention --device cuda:0 --suite prefill`,
// and bench/peers_gpu.py beside other libraries. Used by workload/attention_cases.
#pragma once

#include <vector>

#include "workload/attention_cases.h"

namespace fovea {

// Causal prompts of 16k tokens in all with contiguous KV, pages of 1, 16 and 64, appended chunks, mixed batches and
// their parts, 16 to 128 query tokens a request, soft-cap, window, ragged prompts, block-sparse rows.
std::vector<MeasuredCase> prefill_cases();

// A square pattern of `tokens` queries and KV tokens: `percent` of the blocks of each block row, at least one, drawn
// with a seed; ascending.
BlockPattern random_blocks(std::int32_t tokens, std::int32_t block, std::int32_t percent, std::uint64_t seed);

}  // namespace fovea
