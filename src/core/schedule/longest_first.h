// The schedule of plans with many (tile, KV head) pairs and much arithmetic each, as prompts have: pairs stay whole,
// and each goes to the worker that would be free first, longest pairs first (LPT), within sections of runs whose keys
// and values a device's L2 holds together, so that workers read the same ones at the same time. Called
// by core/plan instead of the cut step; no allocation.
#pragma once

#include <cstdint>

#include "core/schedule/cut.h"

namespace fovea {

// Work space for all pairs and workers of a plan.
struct LongestFirstScratch {
  std::uint64_t* keys = nullptr;     // [pairs] by section, then cost
  std::uint32_t* owners = nullptr;   // [pairs]
  std::uint64_t* free_at = nullptr;  // [workers] a heap: cost so far and worker
};

struct LongestFirstConfig {
  std::uint32_t num_workers = 1;
  std::uint32_t tokens_per_tile = abi::kNone;
  std::uint32_t token_bytes = 512;  // of K and V of one token of one KV head
  std::uint64_t section_bytes = 32ull << 20;
};

// Fills out, as emit_spans() does with plans that no cut divides. False, with nothing made that counts: pairs are too
// few or too uneven to be spread whole (a worker would have more than 1/16 above its share); cuts do better then.
bool emit_longest_first(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const LongestFirstConfig& config,
                        const LongestFirstScratch& scratch, ScheduleOutput& out);

}  // namespace fovea
