// The merge list step: which partial states, in ascending KV order, make each output row that no item writes directly.
// Called by core/plan after the cut; pure, without allocation.
#pragma once

#include "core/plan/arrays.h"

namespace fovea {

// For each query token, the block rows (those that are not solo) that cover it, in the order of the plan.
void place_covers(PlanArrays& plan, std::uint32_t num_rows);
// The same in ascending KV order. Depends on the packing alone, so grown plans keep it.
void list_covers(PlanArrays& plan, std::uint32_t num_rows);

// The merge list in two parts, so that growing lengths redo little. First what packing alone decides: an entry for each
// (row, head) under block rows that are not solo, as if nothing were divided; chunked: one part a chunk.
void list_shared_merges(PlanArrays& plan, std::uint32_t num_rows, std::uint32_t group, std::uint32_t tokens_per_tile,
                        bool chunked);
// Then what the cut decides: entries of divided (or chunked) solo tiles, and of rows of other tiles that were divided.
// May be called again after another cut.
void list_cut_merges(PlanArrays& plan, std::uint32_t group, std::uint32_t tokens_per_tile);

}  // namespace fovea
