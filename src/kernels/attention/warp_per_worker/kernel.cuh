// The attention kernel whose workers are warps: every warp runs a queue of its own, with its own ring, state and
// loader, and waits for no other but where parts of a pair are combined at the end of queues. For plans of decode:
// items of one query token with up to 8 query heads a KV head, none shared, no mask but by position, one queue a
// worker. For drafts, of up to 32 (query token, query head) rows, a worker is a team of two warps: 16 rows each,
// against the slices of one ring. Worker w is team w % kTeams of CTA w / kTeams. Block: kWarps warps; dynamic shared
// memory: sizeof(SharedMemory), see tune/attention_choice.h. docs/kernels/warp-per-worker.md has the design and the
// figures.
#pragma once

#include "kernels/attention/warp_per_worker/finish.cuh"

namespace fovea::attention::warp_per_worker {

// The tokens that the one query sees of the run: all, or those that a mask by position leaves.
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

// The same of several query tokens, and the rows of hooks.
__device__ __forceinline__ void bound_rows(const Work& work, uint32_t lane, Place& place) {
  constexpr uint32_t kFar = 1u << 30;  // no run has as many tokens
  const abi::BlockRow& block_row = work.record->block_row;
  const bool masked = (work.record->item.flags & abi::kItemMasked) != 0 && block_row.mask != abi::MaskKind::kNone;
  const bool window = masked && block_row.mask == abi::MaskKind::kWindow && block_row.window_left >= 0;
  place.span = window ? min(static_cast<uint32_t>(block_row.window_left) + 1, kFar) : kFar;
  uint32_t first_end = kFar, last_end = 0;
#pragma unroll
  for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row row = find_row(work, work.first_row + 8 * j + 2 * (lane & 3) + i);
      place.q_pos[j][i] = row.position;
      place.q_head[j][i] = row.q_head;
      place.row_end[j][i] = kFar;
      if (!row.valid) continue;
      if (masked) place.row_end[j][i] = static_cast<uint32_t>(max(row.position - block_row.position_base + 1, 0));
      first_end = min(first_end, place.row_end[j][i]);
      last_end = max(last_end, place.row_end[j][i]);
    }
  }
  first_end = __reduce_min_sync(~0u, first_end);
  last_end = __reduce_max_sync(~0u, last_end);
  const auto begin_of = [&](uint32_t end) { return end - min(end, place.span); };
  place.begin = max(place.begin, begin_of(first_end));
  place.end = min(place.end, last_end);
  place.all_begin = max(place.begin, begin_of(last_end));
  place.all_end = min(place.end, first_end);
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
  Place place{};
  place.record = &record;
  place.begin = record.item.kv_begin;
  place.end = static_cast<uint32_t>(record.kv_len);
#pragma unroll
  for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      place.scale[j][i] = q.scale[0];
      if constexpr (kScaleRows) {
        const uint32_t holder = (lane & 3) * 8 + 4 * i;
        place.scale[j][i] = __shfl_sync(~0u, q.scale[j], holder);
        if constexpr (kIntegers) {
          place.sum[j][i] = __shfl_sync(~0u, q.sum[j], holder);
          place.bias[j][i] = __shfl_sync(~0u, q.bias[j], holder);
        }
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
  const uint32_t team = warp / kTeamWarps;
  if constexpr (kTma) {
    if (lane < kSlots && warp % kTeamWarps == Loader::first_of(warp)) {
      ptx::mbarrier_init(ptx::smem_address(&shared.full[team][lane]), 1);
    }
    ptx::fence_mbarrier_init();
    __syncwarp();
  }
  Loader loader(args, k_map, v_map, shared, worker, warp, lane);
  if constexpr (kSharedParts) announce(shared, loader.first_part(), warp, lane);
#pragma unroll 1
  for (int i = 0; i < kSlots && loader.works(); ++i) loader.load();
  __syncthreads();  // what every warp announced, and barriers of the team
  uint32_t slot = 0, parity = 0;
  for (uint32_t n = 0;; ++n) {
    const ItemRecord& record = shared.records[team][n % kRecordsAhead];
    // The record's copies came before those of its first slice.
    ptx::cp_async_wait<kSlots - 1>();
    sync_team(warp);
    if (record.head == kEndOfWork) return;
    Work work{};
    work.args = &args;
    work.warp = warp;
    work.lane = lane;
    work.record = &record;
    work.header = &header;
    work.group = group;
    work.q_heads = q_heads;
    const abi::WorkItem& item = record.item;
    work.rows = kDrafts ? item.row_count * group : group;
    // Both warps of a team work on few rows, each on half of a slot.
    const bool by_slices = kTeamWarps > 1 && work.rows <= kRows;
    work.first_row = by_slices ? 0 : warp % kTeamWarps * kRows;
    const bool has_rows = !kDrafts || work.first_row < work.rows;
    const bool direct = item.partial_slot == abi::kNone;
    PartFinder part(args, work, worker);
    const Row rows[2] = {find_row(work, work.first_row + lane / 4),
                         kRowBlocks > 1 ? find_row(work, work.first_row + lane / 4 + 8) : Row{}};
    constexpr bool kRest = kBlocks > kQueryBlocks;
    const Queries q =
        load_queries(args, rows, logit_scale(args, record.head), shared.hook_rows[Variant::kHasQuery ? warp : 0],
                     &shared.queries[kRest ? warp : 0][0][kRest ? lane : 0], lane);
    Place place = place_of(record, q, lane);
    const uint32_t loaded_end = place.end;
    if constexpr (kDrafts) {
      bound_rows(work, lane, place);
    } else {
      if (item.flags & abi::kItemMasked) bound_by_mask(record.block_row, record.positions[0], place);
    }
    State state;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) clear(state[j]);
    uint32_t token = item.kv_begin & ~(kTokens - 1u);
    do {
      if constexpr (kTma) {
        ptx::mbarrier_wait(ptx::smem_address(&shared.full[team][slot]), parity);
      }
      if constexpr (!kTma || kTokenScales) {
        ptx::cp_async_wait<kSlots - 1>();
        sync_team(warp);
      }
      if (has_rows && token < place.end && token + kSlotTokens > place.begin) {
        const auto take = [&]<int kSlices, bool kWhole>(uint32_t first) {
          const uint32_t tile = ptx::smem_address(shared.teams[team].ring[slot][first][0]);
          const uint32_t begin = token + first * kTokens;
          // For one query token not worth a branch where a warp waits for the memory anyway.
          const bool whole = kWhole || (kInt4 && !kDrafts && place.all_see(begin, kSlices * kTokens));
          Logits slices[kSlices];
#pragma unroll
          for (int s = 0; s < kSlices; ++s) {
            if constexpr (kTokenScales) {
              slices[s].scales.load(ptx::smem_address(shared.scales[team][slot][(first + s) * kTokens]), lane);
            }
            multiply_keys(q, place, tile + 2 * s * kTile, lane, slices[s].x);
          }
#pragma unroll
          for (int s = 0; s < kSlices; ++s) {
            finish_logits(args, place, begin + s * kTokens, whole, group, lane, slices[s]);
          }
          uint32_t p[kSlices][kRowBlocks][2];
          softmax(args, state, slices, p);
#pragma unroll
          for (int s = 0; s < kSlices; ++s) {
            multiply_values<kWhole>(state, p[s], tile + (2 * s + 1) * kTile, place, begin + s * kTokens, lane);
          }
        };
        if constexpr (!kDrafts) {
          take.template operator()<kSlotSlices, false>(0);
        } else {
          constexpr int kHalf = (kSlotSlices + 1) / 2;
          const uint32_t first = by_slices ? warp % kTeamWarps * kHalf : 0;
          const uint32_t count = by_slices ? kHalf : kSlotSlices;
          if (!place.all_see(token + first * kTokens, count * kTokens)) {
#pragma unroll 1
            for (uint32_t i = first; i < first + count; ++i) {
              const uint32_t begin = token + i * kTokens;
              if (begin < place.end && begin + kTokens > place.begin) take.template operator()<1, false>(i);
            }
          } else if constexpr (kRegistersAreFew) {
#pragma unroll 1
            for (uint32_t i = first; i < first + count; ++i) take.template operator()<1, true>(i);
          } else if (by_slices) {
            take.template operator()<kHalf, true>(first);
          } else {
            take.template operator()<kSlotSlices, true>(0);
          }
        }
      }
      sync_team(warp);
      if (loader.works()) loader.load();
      part.step();
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
      token += kSlotTokens;
    } while (token < loaded_end);
    if (has_rows) {
      Result result[kRowBlocks];
      finish_state(work, state, direct && !by_slices, result);
      const bool second = by_slices && warp % kTeamWarps != 0;
      if (by_slices) {
        if (second) put_part(shared.parts[team], result, lane);
        sync_team(warp);  // the next ones come behind those of slots
        if (!second) add_of_team(shared.parts[team], result, lane);
        if (direct) add_extra_logits(work, result);
      }
      if (!second && (direct || combine(work, shared, part.find(), result))) write_direct(work, result);
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
  const uint32_t worker = blockIdx.x * warp_per_worker::kTeams + warp / warp_per_worker::kTeamWarps;
  warp_per_worker::prefetch_start(args, &k_map, &v_map, worker, threadIdx.x % 32);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  warp_per_worker::run_worker(args, &k_map, &v_map, *reinterpret_cast<warp_per_worker::SharedMemory*>(dynamic_shared),
                              worker, warp, threadIdx.x % 32);
}
