// HeadBatch: the block rows of a forward for layers whose KV heads keep different tokens: what each range of heads of
// an attention group lets each request see. Heads that keep all share prefixes among requests; where some queries read
// selected pages instead, their block rows come from Selection. Filled by ModelRunner for attention groups that one
// plan of requests cannot say, and by Selection for the queries of its layers that read all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/head_rows.h"
#include "core/plan/shared_rows.h"
#include "engine/cache/kv_format.h"
#include "engine/model/model.h"
#include "engine/scheduler/scheduler.h"

namespace fovea {

// Page tables of all KV groups, one behind the other.
struct PageTables {
  std::vector<std::int32_t> entries;
  std::vector<std::vector<std::uint32_t>> begins;  // [KV group][request of the step] first entry of its list

  // Tables of `stride` entries a request.
  PageTables(std::size_t num_groups, std::size_t max_requests, std::size_t stride);
  std::uint32_t begin(std::size_t group, std::size_t request) const { return begins[group][request]; }
};

// True when every query sees all, or a window without sinks, so that PagedAttention::plan() serves.
bool plans_by_request(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups);

class HeadBatch {
 public:
  // planner: of the operator that gets the block rows, before raise_limits(); its pages are those of the tables.
  HeadBatch(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups, const KvFormat& format,
            const PlannerOptions& planner);

  // What the limits must be for the block rows of make(), given those for requests; tree_rows: most rows of items whose
  // drafts are trees.
  void raise_limits(PlanLimits& limits, std::int32_t tree_rows = 0) const;
  // Valid until the next call, as long as the tables are. selecting: by item of the step, its last query tokens that
  // get no block row under heads that keep all; empty: none.
  BlockRowBatch make(const Step& step, std::span<const std::int32_t> positions, const PageTables& tables,
                     std::span<const std::int32_t> selecting = {});

 private:
  struct Range {
    HeadSegment segment;
    std::size_t kv_group = 0;
    std::int32_t prompt_window = 0;  // 0: as the segment's
    std::uint32_t token_bytes = 0;   // K and V of a token and KV head
  };
  void add_window(const Range& range, const Step& step, const PageTables& tables);
  // Says of the last rows of an item, its draft tokens among them, what they see of each other under the segment's
  // heads, where the draft is no chain.
  void mask_tree(const StepItem& item, const HeadSegment& segment, RequestRows& rows);
  void list_requests(const Range& range, const Step& step, const PageTables& tables,
                     std::span<const std::int32_t> selecting);

  bool invariant_;
  std::int32_t shared_rows_;
  std::vector<Range> ranges_;
  std::vector<std::uint32_t> token_bytes_;  // by range
  SharedRows shared_;
  std::vector<RequestRows> requests_;
  std::vector<abi::BlockRow> block_rows_;
  std::vector<std::uint32_t> row_indices_;
  std::vector<std::int32_t> q_pos_;
  std::vector<std::uint8_t> mask_bits_;
};

}  // namespace fovea
