// A plan as it lies in device memory: one buffer, written by one copy from the host (or cut again on the device), read
// by every worker of a launch. Made by core/plan/device_plan; read by kernels/. Compiles under g++ and NVRTC.
//
// The header and the first work of every worker stand at fixed offsets, so that a worker starts with one round trip to
// memory; everything else is packed behind, as tight as the plan at hand allows, and found through the header.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

inline constexpr uint32_t kDevicePlanAlignment = 64;

// Byte offsets are from the start of the buffer and multiples of kDevicePlanAlignment, unless they are kNone.
struct DevicePlanHeader {
  PlanHeader counts;
  uint32_t num_workers;
  uint32_t bytes;             // of the whole plan
  uint32_t items;             // WorkItem[counts.num_items]; counts are those of what is packed
  uint32_t block_rows;        // BlockRow[counts.num_block_rows]
  uint32_t queue;             // uint32_t[counts.num_queue_entries + 1]; the last one is 0
  uint32_t row_indices;       // uint32_t[number of (query token, block row) pairs]
  uint32_t q_pos;             // int32_t[the same]
  uint32_t merges;            // DeviceMerge[counts.num_merges]; under kPlanShares one for each (query token, KV head),
                              // see merge_number()
  uint32_t merge_parts;       // uint32_t[counts.num_parts]
  uint32_t merge_of_partial;  // uint32_t[counts.num_partial_rows / counts.group]: the merge that consumes partial rows
                              // [i * group, (i + 1) * group); nothing under kPlanWarpStarts and kPlanShares
  uint32_t growth;            // GrowthHeader, or kNone: the plan cannot be cut again on the device
  uint32_t reschedule_error;  // of the last rescheduling: 0, or it left the plan as it was: 1 + a length slot whose
                              // length shrank or outgrew its page list; kNone: growth is kNone
};
static_assert(sizeof(DevicePlanHeader) == 128);

// A MergeEntry, but for what it is of. Under kPlanShares pairs that nothing merges have no parts.
struct DeviceMerge {
  uint32_t parts_begin;
  uint32_t num_parts;
};

// Under kPlanShares: most rows are made of parts there, and none need be looked up by its partial rows.
constexpr uint32_t merge_number(const PlanHeader& counts, uint32_t row, uint32_t head) {
  return row * counts.num_kv_heads + head;
}

// What a worker does first, and where the rest of its queue is: entries [queue_begin, queue_end). A worker without work
// has queue_begin == queue_end, and the other fields are 0. 64 bytes, so that a record is one half of a cache line; the
// table starts at kWorkerStartOffset.
struct WorkerStart {
  WorkItem item;  // of entry queue_begin
  uint16_t head;  // heads [head, head_end) of entry queue_begin
  uint16_t head_end;
  uint32_t queue_begin;
  uint32_t queue_end;
  uint32_t reserved[5];
};
static_assert(sizeof(WorkerStart) == 64);

// Of workers that are warps or teams of them, a thousand (kPlanWarpStarts): where a worker begins; it ends where the
// next one does, and one more start stands behind the last worker's. Pairs (item, KV head) stand end to end, item by
// item and head by head, and items are whole tiles: a plan has no queue, no items of parts and no merges, since all of
// that follows from where workers begin. A worker without work begins as the next one does. 24 bytes.
struct WarpStart {
  uint32_t pair;        // queue_entry(item, head); item == number of items: behind all work
  uint32_t list_begin;  // of the item
  uint32_t kv_begin;    // tokens [kv_begin, kv_end) of the pair: what the worker computes of it
  uint32_t kv_end;
  uint32_t partial_slot;  // of that part, which goes through the workspace; kNone: it is the whole pair
  uint16_t part;          // which part of the pair, in ascending KV order; the partial rows of parts follow one another
  uint16_t num_parts;     // of the pair; 0: it is whole
};
static_assert(sizeof(WarpStart) == 24);

inline constexpr uint32_t kWorkerStartOffset = sizeof(DevicePlanHeader);

constexpr uint64_t start_bytes(uint64_t workers, bool warps) {
  return warps ? (workers + 1) * sizeof(WarpStart) : workers * sizeof(WorkerStart);
}

// Of a worker whose queue is [begin, end).
constexpr WorkerStart worker_start(const PlanHeader& counts, uint32_t begin, uint32_t end, const uint32_t* queue,
                                   const WorkItem* items) {
  WorkerStart start{};
  start.queue_begin = begin;
  start.queue_end = end;
  if (begin == end) return start;
  const uint32_t entry = queue[begin];
  start.item = items[queue_item(entry)];
  start.head = static_cast<uint16_t>(queue_head(entry));
  start.head_end = static_cast<uint16_t>(queue_head_end(counts, start.item.flags, entry, queue[begin + 1]));
  return start;
}
// Of a worker that begins behind all of `items` items.
constexpr WarpStart warp_end(uint32_t items) { return {queue_entry(items, 0), 0, 0, 0, kNone, 0, 0}; }

struct DevicePlanCounts {
  uint64_t start_bytes, block_rows, row_indices, growth_bytes;  // the same however lengths grow
  uint64_t items, queue, merges, parts, merge_of_partial;       // queue: its last word too, or 0 without a queue
};

struct DevicePlanSections {
  uint64_t block_rows, row_indices, q_pos, growth;  // growth: kNone without
  uint64_t items, queue, merges, merge_parts, merge_of_partial, bytes;
};

// Where each section goes. First those that rescheduling reads and leaves where they are.
constexpr DevicePlanSections place_device_plan(const DevicePlanCounts& n) {
  DevicePlanSections s{};
  const auto after = [](uint64_t begin, uint64_t bytes) {
    return (begin + bytes + kDevicePlanAlignment - 1) / kDevicePlanAlignment * kDevicePlanAlignment;
  };
  s.block_rows = after(kWorkerStartOffset, n.start_bytes);
  s.row_indices = after(s.block_rows, n.block_rows * sizeof(BlockRow));
  s.q_pos = after(s.row_indices, n.row_indices * sizeof(uint32_t));
  const uint64_t growth = after(s.q_pos, n.row_indices * sizeof(int32_t));
  s.growth = n.growth_bytes != 0 ? growth : kNone;
  s.items = after(growth, n.growth_bytes);
  s.queue = after(s.items, n.items * sizeof(WorkItem));
  s.merges = after(s.queue, n.queue * sizeof(uint32_t));
  s.merge_parts = after(s.merges, n.merges * sizeof(DeviceMerge));
  s.merge_of_partial = after(s.merge_parts, n.parts * sizeof(uint32_t));
  s.bytes = after(s.merge_of_partial, n.merge_of_partial * sizeof(uint32_t));
  return s;
}

constexpr void set_sections(const DevicePlanSections& s, DevicePlanHeader& header) {
  header.bytes = static_cast<uint32_t>(s.bytes);
  header.items = static_cast<uint32_t>(s.items);
  header.block_rows = static_cast<uint32_t>(s.block_rows);
  header.queue = static_cast<uint32_t>(s.queue);
  header.row_indices = static_cast<uint32_t>(s.row_indices);
  header.q_pos = static_cast<uint32_t>(s.q_pos);
  header.merges = static_cast<uint32_t>(s.merges);
  header.merge_parts = static_cast<uint32_t>(s.merge_parts);
  header.merge_of_partial = static_cast<uint32_t>(s.merge_of_partial);
  header.growth = static_cast<uint32_t>(s.growth);
}

}  // namespace fovea::abi
