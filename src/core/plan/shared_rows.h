// SharedRows: block rows of requests under heads that see all tokens before a query, runs of pages that several
// requests share read once for all of them: the pack step for some heads of a layer, beside which other heads have
// block rows of another kind (streaming heads, selected pages). Called by the engine's runner, by way of HeadBatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/forest/forest.h"
#include "core/layout/head_rows.h"
#include "core/plan/planner.h"

namespace fovea {

class SharedRows {
 public:
  // Of the planner that gets the block rows: pages, tiles, limits and whether to share at all. The options are those
  // that Planner::create() takes.
  explicit SharedRows(const PlannerOptions& options);
  SharedRows(SharedRows&&) = default;
  SharedRows& operator=(SharedRows&&) = default;

  // Finds what the requests share, limits.max_requests at most; those without rows take no part. Lists are borrowed
  // until the next call, and so are the requests.
  void find(std::span<const RequestRows> requests, const std::int32_t* page_entries);
  // Appends the second copy of the rows that shared runs refer to. row_indices and q_pos are parallel, and begin with
  // one of each row. Nothing where no run is shared.
  void append_rows(std::vector<std::uint32_t>& row_indices, std::vector<std::int32_t>& q_pos);
  // Appends the shared runs and then each request's own, under the segment's heads and pool. After append_rows().
  void append_block_rows(const HeadSegment& segment, std::vector<abi::BlockRow>& block_rows) const;

  // KV tokens of one head that need not be read because runs are shared.
  std::uint64_t tokens_saved() const { return tokens_saved_; }
  // Block rows that one segment can need beside a run for each request, and rows in them.
  static std::int32_t most_nodes(const PlanLimits& limits) { return limits.max_requests; }
  static std::int32_t most_shared_rows(const PlannerOptions& options);

 private:
  bool share_ = false;
  PackRule rule_;
  std::vector<std::byte> memory_;  // of the forest
  Forest forest_;
  std::span<const RequestRows> requests_;
  std::vector<std::int32_t> counts_;
  std::vector<std::uint32_t> shareable_;
  std::vector<std::int64_t> begins_;
  std::vector<std::uint32_t> copy_of_;  // by position in the forest's order: its first row of the copy
  std::vector<std::uint8_t> adjacent_;  // by node: its rows stand one behind the other
  std::uint64_t tokens_saved_ = 0;
};

}  // namespace fovea
