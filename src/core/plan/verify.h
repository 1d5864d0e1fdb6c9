// Checks a plan against what it should do, slowly and apart from the code that makes plans: every visible (row, head,
// KV token) is covered exactly once, every output has exactly one writer, merges are complete and ascending, queues and
// flags are right. Called by tests and by `fovea plan explain`.
#pragma once

#include "abi/plan.h"
#include "core/plan/planner.h"
#include "fovea/status.h"

namespace fovea {

// Items, queues, partial rows and merges against the block rows. kInternal, with the place, for the first thing wrong.
Status verify_schedule(const abi::PlanView& plan, std::uint32_t max_partial_rows);

// Block rows against the batch they were packed from: runs, pages, positions and masks of every row.
Status verify_packing(const abi::PlanView& plan, const AttentionBatch& batch, std::int32_t page_tokens);

}  // namespace fovea
