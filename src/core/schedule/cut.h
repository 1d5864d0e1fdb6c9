// The cut step: lays all (tile, KV head) pairs end to end, tile by tile and head by head, and cuts them into W spans of
// equal cost, so that at most W - 1 pairs are divided. Then turns spans into items and queues. Called by core/plan for
// new plans and for grown ones; no allocation. Where cuts fall is in abi/cut.h, which devices share.
#pragma once

#include <cstdint>

#include "abi/cut.h"
#include "core/schedule/tile.h"
#include "core/schedule/workspace.h"

namespace fovea {

using abi::CutConfig;
using abi::CutPoint;

// A (tile, head) pair that cuts divided, and the items it became, in ascending KV order.
struct SplitPair {
  std::uint32_t head;
  std::uint32_t first_item;
  std::uint32_t num_items;
};

// Cost of all tiles undivided.
std::uint64_t total_cost(const FixedVector<PlanTile>& tiles);

// Cut points 1 .. W-1 into cuts[0 .. W-2], ascending. Point k stands where k/W of the cost is behind it, moved to the
// nearest multiple of block_tokens, and to an end of the pair where a part would be shorter than min_part_tokens().
// Where dividing pairs itself makes the spans uneven, a second pass weighs it, and the better of the two counts. With
// several rounds the spans are uneven by intent: executors claim them in order, long ones first, so that those that run
// faster than others take more of the short ones.
// Scratch: other_cuts [W - 1], overhead [W].
void cut_tiles(const FixedVector<PlanTile>& tiles, const CutConfig& config, CutPoint* cuts, CutPoint* other_cuts,
               std::uint64_t* overhead);

// What the cut step fills, all borrowed.
struct ScheduleOutput {
  FixedVector<abi::WorkItem>* items;
  FixedVector<SplitPair>* splits;
  FixedVector<std::uint32_t>* queue;
  std::uint32_t* queue_begin;      // [num_workers + 1]
  std::uint64_t* worker_cost;      // [num_workers]
  std::uint32_t num_partial_rows;  // in: those of undivided tiles (0 in batch-invariant mode); out: all
  bool head_runs;                  // in: queue entries of spans are runs of heads, see abi::queue_head_end()
};

// Items and queues of the spans between the cut points; tiles learn which items they became.
void emit_spans(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const CutPoint* cuts,
                const CutConfig& config, ScheduleOutput& out);

// Batch-invariant mode: items are chunks between absolute multiples of invariant_chunk, whatever the batch; workers get
// whole chunks, near equal in cost.
void emit_chunks(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const CutConfig& config,
                 ScheduleOutput& out);

}  // namespace fovea
