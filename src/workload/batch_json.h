// A batch described in JSON: what `fovea plan explain` reads. docs/plan.md has an example of every key.
#pragma once

#include <string>
#include <string_view>

#include "core/plan/planner.h"
#include "fovea/status.h"
#include "workload/paged_batch.h"

namespace fovea {

struct DescribedBatch {
  std::string title;
  PagedBatch batch;
  PlannerOptions options;  // limits follow the batch
};

// {"title", "query_heads", "kv_heads", "head_dim", "kv_bits", "page", "workers", "tile_rows", "block_tokens", "share",
//  "batch_invariant", "invariant_chunk", "mask": "none|causal|window", "window", "seed", and one of
//  "requests": [{"kv", "q", "count", "prefix": [["name", tokens], ..]}, ..]: requests with the same leading names share
//              those tokens,
//  "tree": "1,4,64_1024,256,128" with "q",
//  "lengths": {"kind": "constant|uniform|zipf|one_long", "count", "average"} with "q"}
// `where` opens every message.
Result<DescribedBatch> parse_batch(std::string_view text, std::string_view where);

}  // namespace fovea
