#include "testing/device_plan_view.h"

#include <cstring>
#include <type_traits>

namespace fovea {

DevicePlanView::DevicePlanView(const std::uint8_t* plan) {
  std::memcpy(&header_, plan, sizeof header_);
  launch_ = {0, header_.num_workers};
  const auto array = [&](auto*& to, std::uint32_t offset) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(plan + offset);
  };
  array(view.block_rows, header_.block_rows);
  array(view.row_indices, header_.row_indices);
  array(view.q_pos, header_.q_pos);
  if (header_.counts.flags & abi::kPlanWarpStarts) {
    expand_warps(plan);
  } else {
    array(view.items, header_.items);
    array(view.queue, header_.queue);
    array(view.merge_parts, header_.merge_parts);
    const auto* starts = reinterpret_cast<const abi::WorkerStart*>(plan + abi::kWorkerStartOffset);
    for (std::uint32_t w = 0; w < header_.num_workers; ++w) queue_begin_.push_back(starts[w].queue_begin);
    queue_begin_.push_back(starts[header_.num_workers - 1].queue_end);
    expand_merges(plan);
  }
  view.header = &header_.counts;
  view.launches = &launch_;
  view.queue_begin = queue_begin_.data();
}

// What merges are of, from the parts that the queue's items leave.
void DevicePlanView::expand_merges(const std::uint8_t* plan) {
  abi::PlanHeader& counts = header_.counts;
  const bool shares = (counts.flags & abi::kPlanShares) != 0;
  const auto* merges = reinterpret_cast<const abi::DeviceMerge*>(plan + header_.merges);
  const auto* of_partial = reinterpret_cast<const std::uint32_t*>(plan + header_.merge_of_partial);
  merges_.resize(counts.num_merges);
  for (std::uint32_t e = 0; e < queue_begin_.back(); ++e) {
    const abi::WorkItem& item = view.items[abi::queue_item(view.queue[e])];
    if (item.flags & abi::kItemDirect) continue;
    const std::uint32_t head_end = abi::queue_head_end(counts, item.flags, view.queue[e], view.queue[e + 1]);
    for (std::uint32_t head = abi::queue_head(view.queue[e]); head < head_end; ++head) {
      const std::uint32_t first = abi::partial_row(item, view.block_rows[item.block_row], head, counts.group);
      for (std::uint32_t i = 0; i < item.row_count; ++i) {
        const std::uint32_t row = view.row_indices[item.row_begin + i];
        const std::uint32_t m = shares ? abi::merge_number(counts, row, head) : of_partial[first / counts.group + i];
        merges_[m] = {row, static_cast<std::uint16_t>(head), static_cast<std::uint16_t>(merges[m].num_parts),
                      merges[m].parts_begin};
      }
    }
  }
  std::erase_if(merges_, [](const abi::MergeEntry& merge) { return merge.num_parts == 0; });
  counts.num_merges = static_cast<std::uint32_t>(merges_.size());
  view.merges = merges_.data();
}

// Items of parts, the queue and the merges, from where workers begin.
void DevicePlanView::expand_warps(const std::uint8_t* plan) {
  abi::PlanHeader& counts = header_.counts;
  const auto* tiles = reinterpret_cast<const abi::WorkItem*>(plan + header_.items);
  const auto* starts = reinterpret_cast<const abi::WarpStart*>(plan + abi::kWorkerStartOffset);
  items_.assign(tiles, tiles + counts.num_items);
  const auto add_part = [&](std::uint32_t pair, std::uint32_t kv_begin, std::uint32_t kv_end, std::uint32_t slot,
                            std::uint32_t part, std::uint32_t num_parts) {
    abi::WorkItem item = tiles[abi::queue_item(pair)];
    const bool last = kv_end == item.kv_end;
    item.kv_begin = kv_begin;
    item.kv_end = kv_end;
    item.partial_slot = slot;
    item.flags = static_cast<std::uint8_t>((item.flags & ~abi::kItemDirect) | abi::kItemSingleHead |
                                           (part == 0 ? abi::kItemFirstPart : 0));
    if (!last) item.flags = static_cast<std::uint8_t>(item.flags & ~abi::kItemOpenEnd);
    queue_.push_back(abi::queue_entry(static_cast<std::uint32_t>(items_.size()), abi::queue_head(pair)));
    items_.push_back(item);
    for (std::uint32_t row = 0; part == 0 && row < item.row_count; ++row) {
      merges_.push_back({view.row_indices[item.row_begin + row], static_cast<std::uint16_t>(abi::queue_head(pair)),
                         static_cast<std::uint16_t>(num_parts), static_cast<std::uint32_t>(merge_parts_.size())});
      for (std::uint32_t i = 0; i < num_parts; ++i) {
        merge_parts_.push_back(slot + (i * item.row_count + row) * counts.group);
      }
    }
  };
  for (std::uint32_t w = 0; w < header_.num_workers; ++w) {
    queue_begin_.push_back(static_cast<std::uint32_t>(queue_.size()));
    const abi::WarpStart& start = starts[w];
    const abi::WarpStart& end = starts[w + 1];
    if (start.pair == end.pair && start.partial_slot == end.partial_slot) continue;
    std::uint32_t pair = start.pair;
    if (start.num_parts != 0) {
      add_part(pair, start.kv_begin, start.kv_end, start.partial_slot, start.part, start.num_parts);
    } else {
      queue_.push_back(pair);
    }
    if (pair == end.pair) continue;
    const auto step = [&] {
      const std::uint32_t head = abi::queue_head(pair) + 1;
      pair = head < counts.num_kv_heads ? pair + 1 : abi::queue_entry(abi::queue_item(pair) + 1, 0);
    };
    for (step(); pair != end.pair; step()) queue_.push_back(pair);
    if (end.part == 0) continue;
    const abi::WorkItem& tile = tiles[abi::queue_item(pair)];
    add_part(pair, tile.kv_begin, end.kv_begin, end.partial_slot - tile.row_count * counts.group, 0, end.num_parts);
  }
  queue_begin_.push_back(static_cast<std::uint32_t>(queue_.size()));
  view.items = items_.data();
  view.merges = merges_.data();
  view.merge_parts = merge_parts_.data();
  counts.num_items = static_cast<std::uint32_t>(items_.size());
  counts.flags &= ~static_cast<std::uint32_t>(abi::kPlanHeadRuns);  // these entries are of one head each
  counts.num_queue_entries = static_cast<std::uint32_t>(queue_.size());
  queue_.push_back(0);
  view.queue = queue_.data();
  counts.num_merges = static_cast<std::uint32_t>(merges_.size());
  counts.num_parts = static_cast<std::uint32_t>(merge_parts_.size());
}

}  // namespace fovea
