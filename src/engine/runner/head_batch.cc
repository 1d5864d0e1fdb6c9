#include "engine/runner/head_batch.h"

#include <algorithm>
#include <numeric>

namespace fovea {

bool plans_by_request(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups) {
  if (attention.ranges.size() != 1) return false;
  const KvGroupSpec& group = groups[attention.ranges[0].kv_group];
  return group.sink_tokens == 0 && group.prompt_window_tokens == 0;
}

HeadBatch::HeadBatch(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups,
                     std::vector<std::uint32_t> token_bytes, bool batch_invariant)
    : invariant_(batch_invariant), token_bytes_(std::move(token_bytes)) {
  for (std::size_t r = 0; r < attention.ranges.size(); ++r) {
    const HeadRange& range = attention.ranges[r];
    const KvGroupSpec& group = groups[range.kv_group];
    ranges_.push_back(
        {{range.head_begin, range.head_end, static_cast<std::int32_t>(r), group.window_tokens, group.sink_tokens},
         range.kv_group,
         group.prompt_window_tokens});
  }
}

void HeadBatch::raise_limits(PlanLimits& limits) const {
  std::int32_t runs = 0;
  std::int32_t block_rows = 0;
  for (const Range& range : ranges_) {
    runs += range.segment.window_tokens == 0 ? 1 : 2;
    block_rows += range.segment.window_tokens == 0 ? 1 : range.prompt_window == 0 ? 2 : 4;
  }
  limits.max_block_rows = std::max(limits.max_block_rows, limits.max_requests * block_rows);
  limits.max_covered_rows = std::max(limits.max_covered_rows, limits.max_rows * runs);
  limits.max_shared_rows = std::max(limits.max_shared_rows, limits.max_rows * 2);
}

BlockRowBatch HeadBatch::make(const Step& step, std::span<const std::int32_t> positions, const PageTables& tables) {
  block_rows_.clear();
  for (const Range& range : ranges_) {
    std::int32_t row = 0;
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      const StepItem& item = step.items[i];
      const auto list = static_cast<std::uint32_t>(tables.begin(range.kv_group, i));
      const auto add = [&](std::int32_t begin, std::int32_t end, std::int32_t window) {
        HeadSegment segment = range.segment;
        segment.window_tokens = window;
        add_head_rows(segment, {static_cast<std::uint32_t>(row), end - begin, end, list}, invariant_, block_rows_);
        row += std::max(end - begin, 0);
      };
      const std::int32_t end = item.begin + item.count;
      const std::int32_t prompt = item.sequence->prompt_length;
      const std::int32_t change = range.prompt_window == 0 ? item.begin : std::clamp(prompt, item.begin, end);
      add(item.begin, change, range.prompt_window);
      add(change, end, range.segment.window_tokens);
    }
  }
  row_indices_.resize(positions.size());
  std::iota(row_indices_.begin(), row_indices_.end(), 0u);
  BlockRowBatch batch;
  batch.num_rows = static_cast<std::int32_t>(positions.size());
  batch.block_rows = block_rows_;
  batch.row_indices = row_indices_;
  batch.q_pos = positions;
  batch.page_entries = tables.entries.data();
  batch.pool_token_bytes = token_bytes_;
  return batch;
}

}  // namespace fovea
