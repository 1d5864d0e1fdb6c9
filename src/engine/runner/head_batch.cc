#include "engine/runner/head_batch.h"

#include <algorithm>
#include <numeric>

#include "engine/cache/kv_pool.h"

namespace fovea {

PageTables::PageTables(std::size_t num_groups, std::size_t max_requests, std::size_t stride)
    : entries(num_groups * max_requests * stride, kDummyPage), begins(num_groups) {
  for (std::size_t i = 0; i < num_groups * max_requests; ++i) {
    begins[i / max_requests].push_back(static_cast<std::uint32_t>(i * stride));
  }
}

bool plans_by_request(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups) {
  if (attention.ranges.size() != 1) return false;
  const KvGroupSpec& group = groups[attention.ranges[0].kv_group];
  return group.sink_tokens == 0 && group.prompt_window_tokens == 0;
}

HeadBatch::HeadBatch(const AttentionGroupSpec& attention, const std::vector<KvGroupSpec>& groups,
                     const KvFormat& format, const PlannerOptions& planner)
    : invariant_(planner.batch_invariant), shared_rows_(SharedRows::most_shared_rows(planner)), shared_(planner) {
  for (std::size_t r = 0; r < attention.ranges.size(); ++r) {
    const HeadRange& range = attention.ranges[r];
    const KvGroupSpec& group = groups[range.kv_group];
    const std::int32_t bits = dtype_bits(KvPool::format_of(group, format).dtype);
    token_bytes_.push_back(static_cast<std::uint32_t>(2 * planner.head_dim * bits / 8));
    ranges_.push_back(
        {{range.head_begin, range.head_end, static_cast<std::int32_t>(r), group.window_tokens, group.sink_tokens},
         range.kv_group,
         group.prompt_window_tokens,
         token_bytes_.back()});
  }
}

void HeadBatch::raise_limits(PlanLimits& limits, std::int32_t tree_rows) const {
  std::int32_t covered = 0;
  std::int32_t block_rows = 0;
  // (query token, part) pairs, of the heads that have most: partial states, of which a device must have room for all.
  std::int32_t parts = std::max(limits.max_shared_rows, shared_rows_);
  for (const Range& range : ranges_) {
    if (range.segment.window_tokens == 0) {
      block_rows += limits.max_requests + SharedRows::most_nodes(limits);
      covered += limits.max_rows + shared_rows_;
    } else {
      block_rows += limits.max_requests * (range.prompt_window == 0 ? 2 : 4);
      covered += limits.max_rows * 2;
      if (range.segment.sink_tokens > 0) parts = std::max(parts, 2 * limits.max_rows);
    }
  }
  // A tree's own tokens are one block row more for each range; what is before them, another part of their attention.
  const auto ranges = static_cast<std::int32_t>(ranges_.size());
  block_rows += ranges * std::min(limits.max_requests, tree_rows);
  covered += ranges * tree_rows;
  limits.max_block_rows = std::max(limits.max_block_rows, block_rows);
  limits.max_covered_rows = std::max(limits.max_covered_rows, covered);
  limits.max_shared_rows = parts + 2 * tree_rows;
}

void HeadBatch::mask_tree(const StepItem& item, const HeadSegment& segment, RequestRows& rows) {
  const std::span<const DraftNode> tree = item.draft_tree();
  if (is_chain(tree)) return;
  rows.tree = true;
  rows.mask_offset = 8 * mask_bits_.size();
  const auto count = static_cast<std::size_t>(rows.count);
  const std::size_t known = count - tree.size();  // rows before the draft tokens, a chain
  mask_bits_.resize(mask_bits_.size() + (count * count + 7) / 8);
  for (std::size_t row = 0; row < count; ++row) {
    const std::size_t later = row < known ? row : known - 1 + static_cast<std::size_t>(tree[row - known].depth);
    const std::int32_t position = rows.own_begin() + static_cast<std::int32_t>(later);
    // A step to what a token follows is one position back.
    auto at = static_cast<std::int32_t>(row);
    for (std::int32_t back = 0; at >= 0; ++back) {
      if (segment.window_tokens == 0 || back < segment.window_tokens || position - back < segment.sink_tokens) {
        const std::size_t bit = rows.mask_offset + row * count + static_cast<std::size_t>(at);
        mask_bits_[bit / 8] |= static_cast<std::uint8_t>(1u << (bit % 8));
      }
      const auto place = static_cast<std::size_t>(at);
      at = place >= known ? tree[place - known].parent + static_cast<std::int32_t>(known) : at - 1;
    }
  }
}

// The sinks and the window of every query, those of prompts with the window that prompts have.
void HeadBatch::add_window(const Range& range, const Step& step, const PageTables& tables) {
  std::int32_t row = 0;
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const StepItem& item = step.items[i];
    const auto add = [&](std::int32_t begin, std::int32_t end, std::int32_t window) {
      HeadSegment segment = range.segment;
      segment.window_tokens = window;
      RequestRows rows{static_cast<std::uint32_t>(row), end - begin, end, tables.begin(range.kv_group, i)};
      if (end == item.begin + item.count) mask_tree(item, segment, rows);
      add_head_rows(segment, rows, invariant_, block_rows_);
      row += std::max(end - begin, 0);
    };
    const std::int32_t end = item.begin + item.count;
    const std::int32_t prompt = item.sequence->prompt_length;
    const std::int32_t change = range.prompt_window == 0 ? item.begin : std::clamp(prompt, item.begin, end);
    add(item.begin, change, range.prompt_window);
    add(change, end, range.segment.window_tokens);
  }
}

void HeadBatch::list_requests(const Range& range, const Step& step, const PageTables& tables,
                              std::span<const std::int32_t> selecting) {
  requests_.clear();
  std::uint32_t row = 0;
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const StepItem& item = step.items[i];
    const std::int32_t count = item.count - (selecting.empty() ? 0 : selecting[i]);
    requests_.push_back({row, count, item.begin + count, tables.begin(range.kv_group, i)});
    if (count == item.count) mask_tree(item, range.segment, requests_.back());
    row += static_cast<std::uint32_t>(item.count);
  }
}

BlockRowBatch HeadBatch::make(const Step& step, std::span<const std::int32_t> positions, const PageTables& tables,
                              std::span<const std::int32_t> selecting) {
  block_rows_.clear();
  mask_bits_.clear();
  row_indices_.resize(positions.size());
  std::iota(row_indices_.begin(), row_indices_.end(), 0u);
  q_pos_.assign(positions.begin(), positions.end());
  BlockRowBatch batch;
  batch.num_rows = static_cast<std::int32_t>(positions.size());
  bool listed = false;
  for (const Range& range : ranges_) {
    if (range.segment.window_tokens > 0) {
      add_window(range, step, tables);
      continue;
    }
    // Heads of a layer that keep all are in one KV group: what requests share is the same for all of them.
    if (!listed) {
      list_requests(range, step, tables, selecting);
      shared_.find(requests_, tables.entries.data());
      shared_.append_rows(row_indices_, q_pos_);
      listed = true;
    }
    shared_.append_block_rows(range.segment, block_rows_);
    const auto heads = static_cast<std::uint64_t>(range.segment.head_end - range.segment.head_begin);
    batch.kv_bytes_saved += shared_.tokens_saved() * heads * range.token_bytes;
  }
  batch.block_rows = block_rows_;
  batch.row_indices = row_indices_;
  batch.q_pos = q_pos_;
  batch.page_entries = tables.entries.data();
  if (!mask_bits_.empty()) {
    mask_bits_.resize(mask_bits_.size() + sizeof(std::uint64_t));  // bits are read by words
    batch.mask_bits = mask_bits_.data();
    batch.mask_bytes = mask_bits_.size();
  }
  batch.pool_token_bytes = token_bytes_;
  return batch;
}

}  // namespace fovea
