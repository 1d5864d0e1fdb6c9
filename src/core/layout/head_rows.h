// Block rows of a layer whose KV heads keep different tokens: some all of them, others the sinks and a window
// (streaming heads). Called by the engine's runner and by tests; selected heads come as block rows of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/planner.h"

namespace fovea {

// KV heads [head_begin, head_end) of a layer, which keep the same tokens in one pool.
struct HeadSegment {
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  std::int32_t pool = 0;           // BlockRow::pool
  std::int32_t window_tokens = 0;  // 0: a query sees all; else itself, window_tokens - 1 before it, and the sinks
  std::int32_t sink_tokens = 0;    // a multiple of the planner's block_tokens where batches are to be invariant
};

// Query tokens of one request: rows [row_begin, row_begin + count) of Q, the last `count` of its first `end` tokens.
struct RequestRows {
  std::uint32_t row_begin = 0;
  std::int32_t count = 0;
  std::int32_t end = 0;
  std::uint32_t list_begin = 0;  // its page list in the segment's pool: entry i holds tokens [i, i + 1) * entry_tokens
  // The rows are a tree: they see all tokens before their own, of which each sees those that `count` bits say, one row
  // behind the other from bit mask_offset of the batch's mask on. Their positions are by depth.
  bool tree = false;
  std::uint64_t mask_offset = 0;

  std::int32_t own_begin() const { return end - count; }
};

// Of the segment's heads and pool, for one request, without rows and tokens.
abi::BlockRow empty_block_row(const HeadSegment& segment);

// What the rows of a tree see of each other.
abi::BlockRow tree_block_row(const HeadSegment& segment, const RequestRows& rows);

// Appends what the rows see under the segment's heads. A run that sees all is one block row. Behind sinks a window is a
// second run of the same list, so that entries between the two may name anything. `invariant`: also where sinks and
// window meet, so that how a query is computed depends on its position alone.
void add_head_rows(const HeadSegment& segment, const RequestRows& rows, bool invariant,
                   std::vector<abi::BlockRow>& block_rows);

}  // namespace fovea
