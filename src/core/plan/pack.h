// The pack step: which rows share which runs. Turns a batch of requests, or block rows made by the caller, into the
// block rows, row indices and positions of a plan. Called by core/plan/planner.
#pragma once

#include "core/plan/arrays.h"
#include "core/plan/planner.h"

namespace fovea {

// Sizes derived from the options that the steps use.
struct PackConfig {
  std::uint32_t page_tokens = 16;
  std::uint32_t num_kv_heads = 8;
  bool share_prefixes = true;
  PackRule rule;
};

// When the forest of a planner with these options shares a run; at most so many (query token, part) pairs of it.
PackRule pack_rule(const PlannerOptions& options, std::uint64_t max_shared_rows);

// What packing found beside the arrays it fills.
struct PackResult {
  std::uint64_t tokens_saved = 0;  // KV tokens (of one head) that the items do not read because runs are shared
  bool shared = false;             // some node is kept
};

// Lengths and page table row lengths against the limits; the message names the request.
Status check_batch(const AttentionBatch& batch, const PlannerOptions& options);

// Tokens that page lists and limits give a request room for.
std::int64_t most_tokens_per_request(const AttentionBatch& batch, const PlannerOptions& options);

// Tokens of request i that every one of its query tokens sees and that growing never changes: what may be shared.
std::uint32_t shareable_tokens(const AttentionBatch& batch, std::uint32_t request);

PackResult pack_batch(const AttentionBatch& batch, const PackConfig& config, PlanArrays& plan);

// Block rows as given: checks them, copies them, marks the solo ones and lists the covers of the others. After a
// failure the arrays hold no valid plan.
Status pack_block_rows(const BlockRowBatch& batch, const PlannerOptions& options, PlanArrays& plan);

// Rows of a request grew by `growth` tokens: moves its positions and its own run's end.
void grow_request(PlanArrays& plan, std::uint32_t request, std::int32_t kv_len);

}  // namespace fovea
