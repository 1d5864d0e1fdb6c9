// The attention kernel whose workers are warps: every warp runs a queue of its own, with its own ring, state and
// loader, and waits for no other but where parts of a pair are combined at the end of queues. For plans of decode:
// items of one query token with up to 8 query heads a KV head, none shared, no mask but by position, one queue a
// worker. Worker w is warp w % kWarps of CTA w / kWarps. Grid: a warp a worker; block: kWarps warps; dynamic shared
// memory: sizeof(SharedMemory), see tune/attention_choice.h. docs/kernels/warp-per-worker.md has the design and the
// figures.
#pragma once

#include "kernels/attention/warp_per_worker/finish.cuh"

namespace fovea::attention::warp_per_worker {

// The tokens that the query sees of the run: all, or those that a mask by position leaves.
__device__ __forceinline__ void bound_by_mask(const abi::BlockRow& block_row, int32_t position, Place& place) {
  const auto clamp = [&](long long token) {
    return static_cast<uint32_t>(
        min(max(token, static_cast<long long>(place.begin)), static_cast<long long>(max(place.begin, place.end))));
  };
  const long long own = static_cast<long long>(position) - block_row.position_base;
  if (block_row.mask == abi::MaskKind::kCausal || block_row.mask == abi::MaskKind::kWindow) {
    const uint32_t end = clamp(own + 1);
    if (block_row.mask == abi::MaskKind::kWindow && block_row.window_left >= 0) {
      place.begin = clamp(own - block_row.window_left);
    }
    place.end = end;
  }
}

// What the first load needs, while an earlier kernel still runs. Reads nothing: that kernel may be fovea_reschedule.
__device__ __forceinline__ void prefetch_start(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                               const abi::TensorMap* v_map, uint32_t worker, uint32_t lane) {
  if (lane == 0) ptx::prefetch_l2(starts_of(args) + worker);
  if (lane == 1) ptx::prefetch_l2(args.plan);
  if (lane == 4) ptx::prefetch_l2(starts_of(args) + worker + 1);
#if FOVEA_LOADER == 0
  if (lane == 2) ptx::prefetch_tensor_map(k_map);
  if (lane == 3) ptx::prefetch_tensor_map(v_map);
#endif
}

// All tokens of an item, and what its logits need of the queries, which lanes hold by other rows.
__device__ __forceinline__ Place place_of(const ItemRecord& record, const Queries& q, uint32_t lane) {
  Place place{&record, record.item.kv_begin, static_cast<uint32_t>(record.kv_len), {q.scale[0], q.scale[0]}, {}, {}};
  if constexpr (kScaleRows) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t holder = (lane & 3) * 8 + 4 * j;
      place.scale[j] = __shfl_sync(~0u, q.scale[0], holder);
      if constexpr (kIntegers) {
        place.sum[j] = __shfl_sync(~0u, q.sum[0], holder);
        place.bias[j] = __shfl_sync(~0u, q.bias[0], holder);
      }
    }
  }
  return place;
}

__device__ __forceinline__ void run_worker(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                           const abi::TensorMap* v_map, SharedMemory& shared, uint32_t worker,
                                           uint32_t warp, uint32_t lane) {
  const auto& header = *reinterpret_cast<const abi::DevicePlanHeader*>(args.plan);
  const uint32_t group = header.counts.group;
  const uint32_t q_heads = header.counts.num_kv_heads * group;
  if constexpr (kTma) {
    if (lane < kSlots) ptx::mbarrier_init(ptx::smem_address(&shared.full[warp][lane]), 1);
    ptx::fence_mbarrier_init();
    __syncwarp();
  }
  Loader loader(args, k_map, v_map, shared, worker, warp, lane);
  announce(shared, loader.first_part(), warp, lane);
#pragma unroll 1
  for (int i = 0; i < kSlots; ++i) loader.load();
  __syncthreads();  // what every warp announced
  uint32_t slot = 0, parity = 0;
  for (uint32_t n = 0;; ++n) {
    const ItemRecord& record = shared.records[warp][n % kRecordsAhead];
    // The record's copies came before those of its first slice.
    ptx::cp_async_wait<kSlots - 1>();
    __syncwarp();
    if (record.head == kEndOfWork) return;
    Work work{};
    work.args = &args;
    work.warp = warp;
    work.lane = lane;
    work.record = &record;
    work.header = &header;
    work.group = group;
    work.q_heads = q_heads;
    work.rows = group;
    const abi::WorkItem& item = record.item;
    const bool direct = item.partial_slot == abi::kNone;
    PartFinder part(args, work, worker);
    const Row rows[2] = {find_row(work, lane / 4), Row{}};
    constexpr bool kRest = kBlocks > kQueryBlocks;
    const Queries q =
        load_queries(args, rows, logit_scale(args, record.head), shared.hook_rows[Variant::kHasQuery ? warp : 0],
                     &shared.queries[kRest ? warp : 0][0][kRest ? lane : 0], lane);
    Place place = place_of(record, q, lane);
    const uint32_t loaded_end = place.end;
    if (item.flags & abi::kItemMasked) bound_by_mask(record.block_row, record.positions[0], place);
    State state;
    clear(state);
    uint32_t token = item.kv_begin & ~(kTokens - 1u);
    do {
      if constexpr (kTma) {
        ptx::mbarrier_wait(ptx::smem_address(&shared.full[warp][slot]), parity);
      }
      if constexpr (!kTma || kTokenScales) {
        ptx::cp_async_wait<kSlots - 1>();
        __syncwarp();
      }
      if (token < place.end && token + kSlotTokens > place.begin) {
        const uint32_t tile = ptx::smem_address(shared.warps[warp].ring[slot][0][0]);
        // Not worth a branch where a warp waits for the memory anyway.
        const bool whole = kInt4 && token >= place.begin && token + kSlotTokens <= place.end;
        Logits slices[kSlotSlices];
#pragma unroll
        for (int s = 0; s < kSlotSlices; ++s) {
          if constexpr (kTokenScales) {
            slices[s].scales.load(ptx::smem_address(shared.scales[warp][slot][s * kTokens]), lane);
          }
          multiply_keys(q, place, tile + 2 * s * kTile, lane, slices[s].x);
        }
#pragma unroll
        for (int s = 0; s < kSlotSlices; ++s) {
          finish_logits(args, place, token + s * kTokens, whole, group, lane, slices[s]);
        }
        uint32_t p[kSlotSlices][2];
        softmax(args, state, slices, p);
#pragma unroll
        for (int s = 0; s < kSlotSlices; ++s) {
          multiply_values(state, p[s], tile + (2 * s + 1) * kTile, place, token + s * kTokens, lane);
        }
      }
      __syncwarp();
      loader.load();
      part.step();
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
      token += kSlotTokens;
    } while (token < loaded_end);
    Result result;
    finish_state(args, place, state, direct, group, lane, result);
    const Row token_row = find_row(work, 0);
    if (direct || combine(args, shared, place, part.find(), result, group, warp, lane)) {
      write_direct(args, place, token_row, result, group, q_heads, lane);
    }
    __syncwarp();
  }
}

}  // namespace fovea::attention::warp_per_worker

extern "C" __global__ void __launch_bounds__(fovea::attention::kConsumerThreads, 1)
    fovea_attention(const __grid_constant__ fovea::abi::AttentionArgs args,
                    const __grid_constant__ fovea::abi::TensorMap k_map,
                    const __grid_constant__ fovea::abi::TensorMap v_map) {
  using namespace fovea;
  using namespace fovea::attention;
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const uint32_t worker = blockIdx.x * warp_per_worker::kWarps + warp;
  warp_per_worker::prefetch_start(args, &k_map, &v_map, worker, threadIdx.x % 32);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  warp_per_worker::run_worker(args, &k_map, &v_map, *reinterpret_cast<warp_per_worker::SharedMemory*>(dynamic_shared),
                              worker, warp, threadIdx.x % 32);
}
