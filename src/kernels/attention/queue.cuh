// The worker's queue: the scheduler warp, which reads the plan ahead of all others and publishes one record an item,
// and what the loaders take from it. The first item stands in WorkerStart, so that its data is one round trip away.
#pragma once

#include "kernels/attention/general/shared.cuh"
#include "kernels/ptx/copy.cuh"

namespace fovea::attention {

inline constexpr uint32_t kEndOfWork = abi::kNone;  // instead of a KV head

// An array of the plan, by its offset in the header.
template <typename T>
__device__ __forceinline__ const T* section(const abi::AttentionArgs& args, uint32_t offset) {
  return reinterpret_cast<const T*>(args.plan + offset);
}

// The first queue of a CTA, found without reading the header.
struct Queue {
  const uint8_t* plan;
  const abi::DevicePlanHeader* header;
  const abi::WorkerStart* start;

  __device__ __forceinline__ static Queue of(const abi::AttentionArgs& args, uint32_t worker) {
    return {args.plan, reinterpret_cast<const abi::DevicePlanHeader*>(args.plan),
            reinterpret_cast<const abi::WorkerStart*>(args.plan + abi::kWorkerStartOffset) + worker};
  }
  __device__ __forceinline__ bool empty() const { return start->queue_begin == start->queue_end; }
};

// The KV tokens that a loader brings: [begin, end) of a run under one KV head.
struct Run {
  uint32_t list_begin;
  uint32_t begin;
  uint32_t end;
  uint32_t head;  // kEndOfWork: there are no more items

  // Stages start at multiples of their size.
  __device__ __forceinline__ uint32_t base() const { return begin & ~(kStageTokens - 1u); }
  __device__ __forceinline__ uint32_t stages() const {
    return end > begin ? (end - base() + kStageTokens - 1) / kStageTokens : 0;
  }
};

__device__ __forceinline__ uint32_t open_end(const abi::AttentionArgs& args, uint32_t flags, uint32_t kv_end,
                                             uint32_t length_slot, int32_t kv_len, int32_t position_base) {
  if (!(flags & abi::kItemOpenEnd) || length_slot == abi::kNone || args.kv_lens == nullptr) return kv_end;
  const int32_t end = kv_len - position_base;
  return end > static_cast<int32_t>(kv_end) ? static_cast<uint32_t>(end) : kv_end;
}

__device__ __forceinline__ Run run_of(const abi::AttentionArgs& args, const ItemRecord& record) {
  const abi::WorkItem& item = record.item;
  return {item.list_begin, item.kv_begin,
          open_end(args, item.flags, item.kv_end, item.length_slot, record.kv_len, record.block_row.position_base),
          record.head};
}

// The first item without waiting for its record: as planned, and the end that its request has grown to.
__device__ __forceinline__ Run planned_run(const Queue& queue) {
  const abi::WorkItem& item = queue.start->item;
  return {item.list_begin, item.kv_begin, item.kv_end, queue.start->head};
}
__device__ __forceinline__ uint32_t first_end(const abi::AttentionArgs& args, const Queue& queue) {
  const abi::WorkItem& item = queue.start->item;
  if (!(item.flags & abi::kItemOpenEnd) || item.length_slot == abi::kNone || args.kv_lens == nullptr) {
    return item.kv_end;
  }
  const auto* block_rows = reinterpret_cast<const abi::BlockRow*>(queue.plan + queue.header->block_rows);
  return open_end(args, item.flags, item.kv_end, item.length_slot, args.kv_lens[item.length_slot],
                  block_rows[item.block_row].position_base);
}

// Position in a ring of `kSize` slots, by the count of uses so far.
template <uint32_t kSize>
struct RingSlot {
  uint32_t index;
  uint32_t parity;
  __device__ __forceinline__ explicit RingSlot(uint32_t use) : index(use % kSize), parity(use / kSize & 1) {}
};

// Where the scheduler warp finds the plan's arrays; read once, in parallel with the first item.
struct Sections {
  const uint8_t* block_rows;
  const uint8_t* row_indices;
  const uint8_t* q_pos;
  const uint4* items;
  const uint32_t* queue;
  uint32_t num_queues;
  const abi::PlanHeader* counts;

  __device__ __forceinline__ explicit Sections(const abi::AttentionArgs& args) {
    const auto& header = *reinterpret_cast<const abi::DevicePlanHeader*>(args.plan);
    block_rows = args.plan + header.block_rows;
    row_indices = args.plan + header.row_indices;
    q_pos = args.plan + header.q_pos;
    items = section<uint4>(args, header.items);
    queue = section<uint32_t>(args, header.queue);
    num_queues = header.num_workers;
    counts = &header.counts;
  }
};

// In kernels with checks the scheduler warp is the watchdog of its CTA: what would hang for good, because a part or a
// copy never comes, ends the launch with an error.
template <class IsOver>
__device__ __forceinline__ void watch(const IsOver& is_over) {
  constexpr long long kMostClocks = 20'000'000'000;  // ten seconds at 2 GHz, of one wait
  const long long begin = clock64();
  while (!is_over()) {
    if (clock64() - begin > kMostClocks) __trap();
  }
}
__device__ __forceinline__ void wait_as_scheduler(uint32_t barrier, uint32_t parity) {
  if constexpr (kChecked) {
    watch([=] { return ptx::mbarrier_test(barrier, parity); });
  } else {
    ptx::mbarrier_wait(barrier, parity);
  }
}

// Publishes the record of the n-th item. words: of the item, see abi::WorkItem. Shared: the shared memory of a kernel
// that has records, their barriers and loaded_items.
template <class Shared>
__device__ __forceinline__ void publish(const abi::AttentionArgs& args, const Sections& plan, Shared& shared,
                                        uint32_t n, const void* item, uint32_t row_begin, uint32_t counts,
                                        uint32_t length_slot, uint32_t block_row, uint32_t head, uint32_t lane) {
  const RingSlot<kRecords> slot(n);
  ItemRecord& record = shared.records[slot.index];
  wait_as_scheduler(ptx::smem_address(&shared.record_empty[slot.index]), slot.parity ^ 1);
  const auto part = [](const void* from, uint32_t i) { return static_cast<const uint8_t*>(from) + 16 * i; };
  if (lane < 4) {
    const uint8_t* from = plan.block_rows + block_row * sizeof(abi::BlockRow);
    ptx::cp_async_16(ptx::smem_address(&record.block_row) + 16 * lane, part(from, lane));
  } else if (lane < 6) {
    ptx::cp_async_16(ptx::smem_address(&record.item) + 16 * (lane - 4), part(item, lane - 4));
  } else if (lane == 6 && (counts >> 24 & abi::kItemOpenEnd) && length_slot != abi::kNone && args.kv_lens != nullptr) {
    ptx::cp_async_4(ptx::smem_address(&record.kv_len), args.kv_lens + length_slot);
  }
  const uint32_t token = lane % kRecordTokens;
  if (token < (counts & 0xffffu)) {
    const uint32_t at = (row_begin + token) * sizeof(uint32_t);
    const bool second = lane >= kRecordTokens;
    ptx::cp_async_4(ptx::smem_address(second ? static_cast<void*>(&record.positions[token]) : &record.rows[token]),
                    (second ? plan.q_pos : plan.row_indices) + at);
  }
  const uint32_t full = ptx::smem_address(&shared.record_full[slot.index]);
  ptx::mbarrier_arrive_after_copies(full);
  if (lane == 0) {
    record.head = head;
    record.bad_pages = 0;
    ptx::mbarrier_arrive(full);
  }
}
inline constexpr uint32_t kRecordArrivals = 33;  // of publish() and publish_end(), a record

template <class Shared>
__device__ __forceinline__ void publish_end(Shared& shared, uint32_t n, uint32_t lane) {
  const RingSlot<kRecords> slot(n);
  wait_as_scheduler(ptx::smem_address(&shared.record_empty[slot.index]), slot.parity ^ 1);
  const uint32_t full = ptx::smem_address(&shared.record_full[slot.index]);
  ptx::mbarrier_arrive_after_copies(full);
  if (lane == 0) {
    shared.records[slot.index].head = kEndOfWork;
    ptx::mbarrier_arrive(full);
  }
}

// Publishes the items of one queue behind `n` others; returns how many there are then.
template <class Shared>
__device__ __forceinline__ uint32_t publish_queue(const abi::AttentionArgs& args, const Sections& plan,
                                                  const Queue& queue, Shared& shared, uint32_t n, uint32_t lane) {
  const uint32_t begin = queue.start->queue_begin;
  const uint32_t total = queue.start->queue_end - begin;
  if (total == 0) return n;
  const auto* words = reinterpret_cast<const uint32_t*>(&queue.start->item);
  const uint32_t first_heads_end = queue.start->head_end;
  for (uint32_t head = queue.start->head; head < first_heads_end; ++head) {
    publish(args, plan, shared, n++, words, words[0], words[1], words[5], words[6], head, lane);
  }
  const uint32_t* const entries = plan.queue + begin;
  for (uint32_t first = 1; first < total; first += 32) {
    const uint32_t count = min(total - first, 32u);
    const uint32_t entry = lane < count ? entries[first + lane] : 0;
    uint4 low{};
    uint4 high{};
    uint32_t heads_end = 0;
    if (lane < count) {
      low = plan.items[2 * abi::queue_item(entry)];
      high = plan.items[2 * abi::queue_item(entry) + 1];
      heads_end = abi::queue_head_end(*plan.counts, low.y >> 24, entry, entries[first + lane + 1]);
    }
    for (uint32_t i = 0; i < count; ++i) {
      const auto of = [i](uint32_t x) { return __shfl_sync(~0u, x, i); };
      const uint32_t which = of(entry);
      const uint32_t end = of(heads_end);
      for (uint32_t head = abi::queue_head(which); head < end; ++head) {
        publish(args, plan, shared, n++, plan.items + 2 * abi::queue_item(which), of(low.x), of(low.y), of(high.y),
                of(high.z), head, lane);
      }
    }
  }
  return n;
}

// Publishes the CTA's own queue, then queues that it claims: those behind the first gridDim.x, in order. The next is
// claimed when all loads of the ones before are on their way, so that fast SMs get more of them.
template <class Shared>
__device__ __forceinline__ void run_scheduler(const abi::AttentionArgs& args, Shared& shared, uint32_t lane) {
  const Sections plan(args);
  Queue queue = Queue::of(args, blockIdx.x);
  uint32_t n = publish_queue(args, plan, queue, shared, 0, lane);
  const uint32_t num_queues = plan.num_queues;
  while (num_queues > gridDim.x) {
    for (uint32_t w = 0; w < sizeof(shared.loaded_items) / sizeof(uint32_t); ++w) {
      const auto is_loaded = [&] { return *static_cast<const volatile uint32_t*>(&shared.loaded_items[w]) == n; };
      if constexpr (kChecked) {
        watch(is_loaded);
      } else {
        while (!is_loaded()) {
        }
      }
    }
    uint32_t claimed = 0;
    if (lane == 0) claimed = gridDim.x + atomicAdd(args.span_counter, 1u);
    claimed = __shfl_sync(~0u, claimed, 0);
    if (claimed >= num_queues) {
      // Every CTA fails once; the last to do so leaves the counter as it was.
      if (lane == 0 && claimed == num_queues + gridDim.x - 1) *args.span_counter = 0;
      break;
    }
    queue = Queue::of(args, claimed);
    n = publish_queue(args, plan, queue, shared, n, lane);
  }
  publish_end(shared, n, lane);
  if (kChecked && n > 0) {
    const RingSlot<kRecords> last(n - 1);
    wait_as_scheduler(ptx::smem_address(&shared.record_empty[last.index]), last.parity);
  }
}

}  // namespace fovea::attention
