// Capacities of a plan, from declared maxima only, and the arrays of those sizes: the part that executors read (one
// contiguous block, so that a device backend can copy it at once) and the planner's scratch.
#pragma once

#include <cstdint>

#include "abi/plan.h"
#include "core/forest/forest.h"
#include "core/plan/planner.h"
#include "core/schedule/cut.h"
#include "core/schedule/longest_first.h"
#include "core/schedule/tile.h"
#include "core/schedule/workspace.h"

namespace fovea {

// How many of each a plan may need.
struct PlanCapacity {
  std::uint64_t requests;
  std::uint64_t rows;         // query tokens
  std::uint64_t shared_rows;  // (query token, part) pairs of shared runs and tree masks
  std::uint64_t row_indices;
  std::uint64_t covers;  // (query token, block row) pairs
  std::uint64_t block_rows;
  std::uint64_t tiles;
  std::uint64_t chunks;  // of one request, in batch-invariant mode; else 1
  std::uint64_t items;
  std::uint64_t queue;
  std::uint64_t merges;
  std::uint64_t parts;
  std::uint64_t partial_rows;
};

// kInvalidArgument for options that make no sense, kOutOfRange for those beyond what the records can hold.
Result<PlanCapacity> plan_capacity(const PlannerOptions& options);

// One block row that covers a query token, and which of its rows that is.
struct RowCover {
  std::uint32_t block_row;
  std::uint32_t nth;
};

// A merge entry of a shared row as it was before a cut divided one of its parts.
struct SavedMerge {
  std::uint32_t index;
  abi::MergeEntry entry;
};

struct PlanArrays {
  // Read by executors.
  abi::PlanHeader* header = nullptr;
  abi::Launch* launches = nullptr;
  std::uint32_t* queue_begin = nullptr;
  FixedVector<abi::WorkItem> items;
  FixedVector<abi::BlockRow> block_rows;
  FixedVector<std::uint32_t> queue;
  FixedVector<std::uint32_t> row_indices;
  FixedVector<std::int32_t> q_pos;
  FixedVector<abi::MergeEntry> merges;
  FixedVector<std::uint32_t> parts;
  FixedVector<std::int32_t> kv_lens;
  std::size_t plan_bytes = 0;  // everything above

  // The batch as the planner keeps it between plan() and grow().
  FixedVector<std::int32_t> q_lens;
  FixedVector<std::uint32_t> q_begin;
  FixedVector<std::uint32_t> own_block_row;  // by request: the one that grows with it, or kNone

  // Scratch.
  Forest forest;
  FixedVector<std::uint32_t> shareable;
  FixedVector<PlanTile> tiles;
  FixedVector<std::uint32_t> tile_begin;
  FixedVector<CutPoint> cuts;
  FixedVector<CutPoint> other_cuts;
  FixedVector<SplitPair> splits;
  FixedVector<std::uint64_t> worker_cost;
  FixedVector<std::uint32_t> cover_begin;
  FixedVector<RowCover> covers;
  FixedVector<std::uint32_t> entry_begin;  // by row: its first entry of the shared merges
  std::uint32_t shared_merges = 0;         // entries, and below that their parts, before any cut
  std::uint32_t shared_parts = 0;
  FixedVector<SavedMerge> saved;
  LongestFirstScratch longest_first;

  void carve(Carver& carver, const PlanCapacity& capacity, std::uint32_t num_workers, bool longest_first);
};

}  // namespace fovea
