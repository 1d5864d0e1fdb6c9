// PagedAttention on a CUDA device: plans with core/plan, packs a plan into one buffer, runs it with one launch. What
// the engine asks may be several of these: a plan for each KV pool, or one for decodes and one for prompts
// (cuda_plans.cc).
#pragma once

#include <memory>

#include "attention/attention_checks.h"
#include "attention/paged_attention.h"

namespace fovea {

Result<std::unique_ptr<PagedAttention>> create_cuda_paged_attention(const AttentionConfig& config, DevicePlace place);

// Of the pool `pool` of config.pools: its block rows are those planned, its view that of run().
Result<std::unique_ptr<PagedAttention>> create_cuda_pool_attention(const AttentionConfig& config, std::size_t pool,
                                                                   DevicePlace place);

}  // namespace fovea
