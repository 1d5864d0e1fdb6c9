#include "core/plan/device_plan.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "core/plan/arrays.h"

namespace fovea {
namespace {

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + abi::kDevicePlanAlignment - 1) / abi::kDevicePlanAlignment * abi::kDevicePlanAlignment;
}

// Where each section goes, for given counts.
struct Sections {
  std::uint64_t items, block_rows, queue, row_indices, q_pos, merges, merge_parts, merge_of_partial, bytes;
};

struct Counts {
  std::uint64_t workers, items, block_rows, queue, row_indices, merges, parts, partial_rows, group;
};

Sections place(const Counts& n) {
  Sections s{};
  std::uint64_t at = abi::kWorkerStartOffset + n.workers * sizeof(abi::WorkerStart);
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t begin = at;
    at += aligned(bytes);
    return begin;
  };
  at = aligned(at);
  s.items = take(n.items * sizeof(abi::WorkItem));
  s.block_rows = take(n.block_rows * sizeof(abi::BlockRow));
  s.queue = take(n.queue * sizeof(std::uint32_t));
  s.row_indices = take(n.row_indices * sizeof(std::uint32_t));
  s.q_pos = take(n.row_indices * sizeof(std::int32_t));
  s.merges = take(n.merges * sizeof(abi::MergeEntry));
  s.merge_parts = take(n.parts * sizeof(std::uint32_t));
  s.merge_of_partial = take(n.partial_rows / n.group * sizeof(std::uint32_t));
  s.bytes = at;
  return s;
}

template <typename T>
void copy(std::byte* to, const T* from, std::uint64_t count) {
  if (count != 0) std::memcpy(to, from, count * sizeof(T));
}

}  // namespace

std::size_t max_device_plan_bytes(const Planner& planner) {
  const PlannerOptions& options = planner.options();
  const PlanCapacity capacity = plan_capacity(options).value();
  const auto group = static_cast<std::uint64_t>(options.num_qo_heads / options.num_kv_heads);
  return place({static_cast<std::uint64_t>(options.num_workers * options.span_rounds), capacity.items,
                capacity.block_rows, capacity.queue, capacity.row_indices, capacity.merges, capacity.parts,
                capacity.partial_rows, group})
      .bytes;
}

std::uint32_t max_device_plan_merges(const Planner& planner) {
  return static_cast<std::uint32_t>(plan_capacity(planner.options()).value().merges);
}

Result<std::size_t> pack_device_plan(const abi::PlanView& plan, std::span<std::byte> buffer) {
  const abi::PlanHeader& counts = *plan.header;
  if (counts.num_launches != 1) return unsupported("a plan of {} launches; devices take one", counts.num_launches);
  const abi::Launch launch = plan.launches[0];
  std::uint64_t row_indices = 0;
  for (std::uint32_t b = 0; b < counts.num_block_rows; ++b) {
    const abi::BlockRow& row = plan.block_rows[b];
    row_indices = std::max<std::uint64_t>(row_indices, std::uint64_t{row.row_begin} + row.row_count);
  }
  const Sections s = place({launch.num_workers, counts.num_items, counts.num_block_rows, counts.num_queue_entries,
                            row_indices, counts.num_merges, counts.num_parts, counts.num_partial_rows, counts.group});
  if (s.bytes > buffer.size()) {
    return make_status(StatusCode::kOutOfRange, "the plan takes {} bytes, its buffer has {}", s.bytes, buffer.size());
  }
  std::byte* const base = buffer.data();
  const auto offset = [](std::uint64_t at) { return static_cast<std::uint32_t>(at); };
  abi::DevicePlanHeader header{};
  header.counts = counts;
  header.num_workers = launch.num_workers;
  header.bytes = offset(s.bytes);
  header.items = offset(s.items);
  header.block_rows = offset(s.block_rows);
  header.queue = offset(s.queue);
  header.row_indices = offset(s.row_indices);
  header.q_pos = offset(s.q_pos);
  header.merges = offset(s.merges);
  header.merge_parts = offset(s.merge_parts);
  header.merge_of_partial = offset(s.merge_of_partial);
  std::memcpy(base, &header, sizeof header);

  auto* const starts = reinterpret_cast<abi::WorkerStart*>(base + abi::kWorkerStartOffset);
  const std::uint32_t* const queue_begin = plan.queue_begin + launch.first_queue;
  for (std::uint32_t w = 0; w < launch.num_workers; ++w) {
    abi::WorkerStart start{};
    start.queue_begin = queue_begin[w];
    start.queue_end = queue_begin[w + 1];
    if (start.queue_begin != start.queue_end) {
      const std::uint32_t entry = plan.queue[start.queue_begin];
      start.item = plan.items[abi::queue_item(entry)];
      start.head = abi::queue_head(entry);
    }
    starts[w] = start;
  }
  copy(base + s.items, plan.items, counts.num_items);
  copy(base + s.block_rows, plan.block_rows, counts.num_block_rows);
  copy(base + s.queue, plan.queue, counts.num_queue_entries);
  copy(base + s.row_indices, plan.row_indices, row_indices);
  copy(base + s.q_pos, plan.q_pos, row_indices);
  copy(base + s.merges, plan.merges, counts.num_merges);
  copy(base + s.merge_parts, plan.merge_parts, counts.num_parts);
  auto* const merge_of_partial = reinterpret_cast<std::uint32_t*>(base + s.merge_of_partial);
  for (std::uint32_t m = 0; m < counts.num_merges; ++m) {
    const abi::MergeEntry& merge = plan.merges[m];
    for (std::uint32_t i = 0; i < merge.num_parts; ++i) {
      merge_of_partial[plan.merge_parts[merge.parts_begin + i] / counts.group] = m;
    }
  }
  return static_cast<std::size_t>(s.bytes);
}

}  // namespace fovea
