#include "core/plan/timeline.h"

#include <algorithm>
#include <functional>

namespace fovea {

std::vector<TimelineEntry> plan_timeline(const Planner& planner) {
  const abi::PlanView view = planner.view();
  const abi::CostModel model = cost_model(planner.options());
  std::vector<TimelineEntry> entries;
  for (std::uint32_t worker = 0; worker < view.launches[0].num_workers; ++worker) {
    std::uint64_t time = 0;
    for (std::uint32_t q = view.queue_begin[worker]; q < view.queue_begin[worker + 1]; ++q) {
      const abi::WorkItem& item = view.items[abi::queue_item(view.queue[q])];
      const std::uint64_t cost = abi::item_cost(model, item.row_count * view.header->group, item.kv_end - item.kv_begin,
                                                item.partial_slot != abi::kNone);
      const std::uint32_t end = view.queue_head_end(q);
      for (std::uint32_t head = abi::queue_head(view.queue[q]); head < end; ++head, time += cost) {
        entries.push_back({worker, abi::queue_entry(abi::queue_item(view.queue[q]), head), time, cost});
      }
    }
  }
  return entries;
}

std::size_t keep_largest(std::vector<TimelineEntry>& entries, std::size_t limit) {
  if (entries.size() <= limit) return 0;
  const std::size_t left_out = entries.size() - limit;
  std::vector<std::uint64_t> costs;
  costs.reserve(entries.size());
  for (const TimelineEntry& entry : entries) costs.push_back(entry.cost);
  std::nth_element(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(limit), costs.end(), std::greater<>());
  const std::uint64_t bound = costs[limit];
  // Those of the bound's own cost fill what the larger ones leave.
  std::size_t room = limit;
  for (const TimelineEntry& entry : entries) room -= entry.cost > bound ? 1 : 0;
  std::erase_if(entries, [&](const TimelineEntry& entry) {
    if (entry.cost > bound) return false;
    if (entry.cost < bound || room == 0) return true;
    --room;
    return false;
  });
  return left_out;
}

}  // namespace fovea
