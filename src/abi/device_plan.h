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
  uint32_t items;             // WorkItem[counts.num_items]
  uint32_t block_rows;        // BlockRow[counts.num_block_rows]
  uint32_t queue;             // uint32_t[counts.num_queue_entries]
  uint32_t row_indices;       // uint32_t[number of (query token, block row) pairs]
  uint32_t q_pos;             // int32_t[the same]
  uint32_t merges;            // MergeEntry[counts.num_merges]
  uint32_t merge_parts;       // uint32_t[counts.num_parts]
  uint32_t merge_of_partial;  // uint32_t[counts.num_partial_rows / counts.group]: the merge that consumes partial rows
                              // [i * group, (i + 1) * group)
  uint32_t reserved[2];
};
static_assert(sizeof(DevicePlanHeader) == 128);

// What a worker does first, and where the rest of its queue is: entries [queue_begin, queue_end). A worker without work
// has queue_begin == queue_end, and the other fields are undefined. 64 bytes; the table starts at kWorkerStartOffset.
struct WorkerStart {
  WorkItem item;  // of entry queue_begin
  uint32_t head;  // of entry queue_begin
  uint32_t queue_begin;
  uint32_t queue_end;
  uint32_t reserved[5];
};
static_assert(sizeof(WorkerStart) == 64);

inline constexpr uint32_t kWorkerStartOffset = sizeof(DevicePlanHeader);

}  // namespace fovea::abi
