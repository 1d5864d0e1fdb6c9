// HeadBatch: the block rows of a forward for layers whose KV heads keep different tokens: what each range of heads of
// an attention group lets each request see. Filled by ModelRunner for attention groups that one plan of requests cannot
// say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/head_rows.h"
#include "engine/model/model.h"
#include "engine/scheduler/scheduler.h"

namespace fovea {

// Page tables of all KV groups, one behind the other: the list of request i of the step is at
// (group * max_requests + i) * stride.
struct PageTables {
  std::vector<std::int32_t> entries;
  std::int32_t max_requests = 0;
  std::int32_t stride = 0;

  std::size_t begin(std::size_t group, std::size_t request) const {
    return (group * static_cast<std::size_t>(max_requests) + request) * static_cast<std::size_t>(stride);
  }
};

// True when every query sees all, or a window without sinks, so that AttentionOp::plan() serves.
bool plans_by_request(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups);

class HeadBatch {
 public:
  // token_bytes: of K and V of a token and KV head, by range.
  HeadBatch(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups,
            std::vector<std::uint32_t> token_bytes, bool batch_invariant);

  // What PlanLimits need, for so many requests and rows.
  void raise_limits(PlanLimits& limits) const;
  // Valid until the next call, as long as the tables are.
  BlockRowBatch make(const Step& step, std::span<const std::int32_t> positions, const PageTables& tables);

 private:
  struct Range {
    HeadSegment segment;
    std::size_t kv_group = 0;
    std::int32_t prompt_window = 0;  // 0: as the segment's
  };

  bool invariant_;
  std::vector<Range> ranges_;
  std::vector<std::uint32_t> token_bytes_;
  std::vector<abi::BlockRow> block_rows_;
  std::vector<std::uint32_t> row_indices_;
};

}  // namespace fovea
