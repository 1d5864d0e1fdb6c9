// When each (item, KV head) of a plan runs, by the cost model. Used by the picture of a plan (draw.cc) and by views of
// an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/planner.h"

namespace fovea {

struct TimelineEntry {
  std::uint32_t worker = 0;
  std::uint32_t entry = 0;  // of one head (abi::queue_item, abi::queue_head)
  std::uint64_t begin = 0, cost = 0;
};

// By worker, then by time.
std::vector<TimelineEntry> plan_timeline(const Planner& planner);
// Keeps the `limit` entries of largest cost, in their order; returns how many went.
std::size_t keep_largest(std::vector<TimelineEntry>& entries, std::size_t limit);

}  // namespace fovea
