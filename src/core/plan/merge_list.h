// The merge list step: which partial states, in ascending KV order, make each output row that no item writes directly.
// Called by core/plan after the cut; pure, without allocation.
#pragma once

#include "core/plan/arrays.h"

namespace fovea {

// For each query token, the block rows (those that are not solo) that cover it, in ascending KV order. Depends on the
// packing alone, so grown plans keep it.
void list_covers(PlanArrays& plan, std::uint32_t num_rows);

// Fills plan.merges and plan.parts from tiles, items and splits.
void list_merges(PlanArrays& plan, std::uint32_t num_rows, std::uint32_t group, std::uint32_t tokens_per_tile);

}  // namespace fovea
