// The attention kernel for plans of decode with few (request, KV head) pairs, where time goes to what happens once: one
// CTA a worker of the plan, whose warps divide the tokens of an item evenly and load keys and values straight into
// registers. No loader, no ring, no barrier but the one at the end of an item. What needs nothing from earlier kernels
// (the plan, page lists packed with it, bringing keys and values into the L2) is done before they have ended.
//
// Plans: items of one query token with up to 8 query heads a KV head, none shared, no mask but by position, one queue a
// worker; of batches or over chosen pages. Grid: the plan's workers; block: kThreads; dynamic shared memory:
// sizeof(SharedMemory), see tune/attention_choice.h. docs/kernels/low-batch.md has the design and the figures.
#pragma once

#include "kernels/attention/low_batch/finish.cuh"

namespace fovea::attention::low_batch {

// The tokens that the query sees: all of the item, which may have grown, or those that a mask by position leaves.
__device__ __forceinline__ void bound(const abi::AttentionArgs& args, const abi::WorkItem& item,
                                      const abi::BlockRow& block_row, int32_t position, Place& place) {
  uint32_t end = item.kv_end;
  if ((item.flags & abi::kItemOpenEnd) && item.length_slot != abi::kNone && args.kv_lens != nullptr) {
    end = open_end(args, item.flags, end, item.length_slot, args.kv_lens[item.length_slot], block_row.position_base);
  }
  place.begin = item.kv_begin;
  place.end = max(item.kv_begin, end);
  if (!(item.flags & abi::kItemMasked)) return;
  const int32_t own = position - block_row.position_base;
  place.end = static_cast<uint32_t>(max(min(own + 1, static_cast<int32_t>(place.end)), 0));
  if (block_row.mask == abi::MaskKind::kWindow && block_row.window_left >= 0) {
    place.begin = static_cast<uint32_t>(max(own - block_row.window_left, static_cast<int32_t>(place.begin)));
  }
  place.end = max(place.end, place.begin);
}

__device__ __forceinline__ abi::WorkItem load_item(const abi::WorkItem* from) {
  struct Halves {
    uint4 low, high;
  };
  const auto* const halves = reinterpret_cast<const uint4*>(from);
  return __builtin_bit_cast(abi::WorkItem, Halves{halves[0], halves[1]});
}

// What run_item() needs of an item's end, by one thread.
__device__ __forceinline__ Rows find_rows(const abi::AttentionArgs& args, const abi::DevicePlanHeader& header,
                                          const abi::WorkItem& item, uint32_t head, uint32_t q_row, int32_t position) {
  Rows rows{};
  rows.q_heads = header.counts.num_kv_heads * kGroup;
  rows.first_head = head * kGroup;
  rows.q_row = q_row;
  rows.position = position;
  rows.direct = (item.flags & abi::kItemDirect) != 0;
  rows.own = item.partial_slot;  // divided pairs stand under one KV head each
  rows.parts = 1;
  if (!rows.direct && (item.flags & abi::kItemFirstPart)) {
    const uint32_t merge = merge_of(args, header, q_row, head, rows.own / kGroup);
    rows.parts = section<abi::DeviceMerge>(args, header.merges)[merge].num_parts;
  }
  return rows;
}

// What products make of raw queries, and of their logits. Not before keys and values are asked for: it waits for the
// queries.
__device__ __forceinline__ void prepare_queries(const abi::AttentionArgs& args, uint32_t head, Queries& q, Place& place,
                                                uint32_t lane) {
  const float scale = logit_scale(args, head);
  const float factor = make_halves(q);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    place.scale[0][i] = kScaleRows ? scale / __shfl_sync(~0u, factor, 4 * (2 * (lane & 3) + i)) : scale;
  }
}

// One item under one KV head. first: nothing may be read yet that earlier kernels write (but into the L2).
__device__ __forceinline__ void run_item(const abi::AttentionArgs& args, const abi::DevicePlanHeader& header,
                                         const abi::WorkItem& item, uint32_t head, SharedMemory& shared, bool first,
                                         uint32_t warp, uint32_t lane) {
  const abi::BlockRow& block_row = section<abi::BlockRow>(args, header.block_rows)[item.block_row];
  const uint32_t q_row = section<uint32_t>(args, header.row_indices)[item.row_begin];
  const int32_t position = section<int32_t>(args, header.q_pos)[item.row_begin];
  if (threadIdx.x == kThreads - 32) shared.rows = find_rows(args, header, item, head, q_row, position);
  // Page lists of the caller, and lengths beside them, may be written until then.
  if (first && !args.lists_fixed) ptx::griddepcontrol_wait();
  Place place{};
  bound(args, item, block_row, position, place);

  // The warp's steps [token, end).
  const uint32_t base = place.begin & ~(kTokens - 1);
  const uint32_t steps = (place.end - base + kTokens - 1) / kTokens;
  uint32_t token = base + steps * warp / kWarps * kTokens;
  const uint32_t end = base + steps * (warp + 1) / kWarps * kTokens;
  const bool works = token < end && place.begin < place.end;
  if (!works && first) ptx::griddepcontrol_wait();
  State state[1];
  clear(state[0]);
  float value_scale = 1.0f;
  if (works) {
    Window window(args, item.list_begin, place, head, token, end, lane);
    if (first && args.lists_fixed) prefetch_step(args, window, token, lane);
    if constexpr (Variant::kHasLogit || Variant::kHasVisible) {
      ItemRecord& record = shared.records[warp];
      if (lane == 0) {
        record.head = head;
        record.positions[0] = position;
        record.block_row.position_base = block_row.position_base;
      }
      __syncwarp();
      place.record = &record;
    }
    if (first) ptx::griddepcontrol_wait();
    Queries q = load_queries(args, q_row, head * kGroup, kGroup, lane);
    Keys keys;
    Values values;
    // Keys and values of the next step are asked for as soon as their registers are free.
    bool loaded = false;
#pragma unroll 1
    for (uint32_t next = token;; next += kTokens) {
      warp_per_worker::Logits logits[kSlices];
      uint32_t p[kSlices][1][2];
      if (loaded) {
#pragma unroll
        for (uint32_t s = 0; s < kSlices; ++s) multiply_keys(q, keys.of[s], logits[s].x[0]);
      }
      if (next < end) {
        window.move_to(args, next);
        load_keys(args, window, next, lane, keys);
      }
      if (loaded) {
#pragma unroll
        for (uint32_t s = 0; s < kSlices; ++s) {
          warp_per_worker::finish_logits(args, place, token + 16 * s, false, kGroup, lane, logits[s]);
        }
        warp_per_worker::softmax(args, state, logits, p);
#pragma unroll
        for (uint32_t s = 0; s < kSlices; ++s) {
          multiply_values(state[0], p[s][0], values.of[s], place, token + 16 * s, lane);
        }
        token = next;
      }
      if (next >= end) break;
      load_values(args, window, next, lane, values);
      window.look_ahead(args);
      if (!loaded) {
        if (kFp8 && args.pool.v_scale != nullptr) value_scale = static_cast<const float*>(args.pool.v_scale)[head];
        prepare_queries(args, head, q, place, lane);
      }
      loaded = true;
    }
  }
  if (first) ptx::griddepcontrol_launch_dependents();
  put_state(shared, state[0], works, warp, lane);
  if (kFp8 && threadIdx.x == kThreads - 32) shared.value_scale = value_scale;  // that warp works if any does
  __syncthreads();
  write_rows(args, shared, threadIdx.x);
}

// All items of the worker, by the CTA.
__device__ __forceinline__ void run_worker(const abi::AttentionArgs& args, SharedMemory& shared, uint32_t worker,
                                           uint32_t warp, uint32_t lane) {
  const Queue queue = Queue::of(args, worker);
  // Few registers are kept from item to item: where it stands in the plan, and heads [low half, high half) yet to come.
  uint32_t item_at = abi::kWorkerStartOffset + worker * static_cast<uint32_t>(sizeof(abi::WorkerStart));
  uint32_t heads = queue.start->head | queue.start->head_end << 16;
  uint32_t at = queue.start->queue_begin;
  abi::WorkItem item = load_item(&queue.start->item);
  if (at == queue.start->queue_end) {
    ptx::griddepcontrol_wait();
    return;
  }
  bool first = true;
#pragma unroll 1
  for (;;) {
    run_item(args, *queue.header, item, heads & 0xffffu, shared, first, warp, lane);
    first = false;
    ++heads;
    const bool is_last = (heads & 0xffffu) == heads >> 16;
    if (is_last && ++at == queue.start->queue_end) return;
    const uint32_t* const entries = section<uint32_t>(args, queue.header->queue) + at;
    if (is_last) {
      item_at = queue.header->items + abi::queue_item(entries[0]) * static_cast<uint32_t>(sizeof(abi::WorkItem));
    }
    item = load_item(section<abi::WorkItem>(args, item_at));
    if (is_last) {
      heads = abi::queue_head(entries[0]) |
              abi::queue_head_end(queue.header->counts, item.flags, entries[0], entries[1]) << 16;
    }
    __syncthreads();  // shared memory is read
  }
}

}  // namespace fovea::attention::low_batch

extern "C" __global__ void __launch_bounds__(fovea::attention::low_batch::kThreads, 1)
    fovea_attention(const __grid_constant__ fovea::abi::AttentionArgs args) {
  using namespace fovea;
  using namespace fovea::attention;
  extern __shared__ __align__(16) uint8_t dynamic_shared[];
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  low_batch::run_worker(args, *reinterpret_cast<low_batch::SharedMemory*>(dynamic_shared), blockIdx.x, warp,
                        threadIdx.x % 32);
}
