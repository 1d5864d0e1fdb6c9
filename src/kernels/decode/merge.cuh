// Partial states become rows of the output in the launch that made them: whoever finishes a row's last part merges all
// of them, in the order of the plan's list, so that the bits do not depend on who that was. Used by the consumers.
#pragma once

#include "kernels/decode/finish.cuh"

namespace fovea::decode {

// One merge of the plan as a warp sees it. Its fields are looked up one after the other while other work goes on:
// index when an item begins, entry when its queries are there, part (lane i: first partial row of part i) at its end.
struct MergeSlot {
  uint32_t index;
  abi::MergeEntry entry;
  uint32_t part;
};

// token: of the item, or beyond it.
__device__ __forceinline__ uint32_t find_merge(const abi::AttentionArgs& args, const Work& work, uint32_t token) {
  const abi::WorkItem& item = work.record->item;
  if ((item.flags & abi::kItemDirect) || token >= item.row_count) return abi::kNone;
  const auto* of_partial = reinterpret_cast<const uint32_t*>(args.plan + work.header->merge_of_partial);
  const uint32_t first = abi::partial_row(item, work.record->block_row, work.record->head, work.group);
  return of_partial[first / work.group + token];
}
__device__ __forceinline__ abi::MergeEntry find_entry(const abi::AttentionArgs& args, const Work& work,
                                                      uint32_t index) {
  if (index == abi::kNone) return abi::MergeEntry{};
  return reinterpret_cast<const abi::MergeEntry*>(args.plan + work.header->merges)[index];
}
__device__ __forceinline__ uint32_t find_part(const abi::AttentionArgs& args, const Work& work,
                                              const abi::MergeEntry& entry, uint32_t i) {
  const auto* parts = reinterpret_cast<const uint32_t*>(args.plan + work.header->merge_parts);
  return i < entry.num_parts ? parts[entry.parts_begin + i] : 0;
}

// Counts a part as done; true when it was the last. Its rows were written before, and a barrier passed.
__device__ __forceinline__ bool arrive_at_merge(const abi::AttentionArgs& args, uint32_t index, uint32_t num_parts) {
  if (index == abi::kNone) return false;
  __threadfence();
  const bool last = atomicAdd(args.merge_counters + index, 1u) + 1 == num_parts;
  if (!last) return false;
  __threadfence();
  args.merge_counters[index] = 0;
  return true;
}

// Merges query head g of the group of a query token of the item. By one warp.
__device__ __forceinline__ void merge_row(const abi::AttentionArgs& args, const Work& work, const MergeSlot& slot,
                                          uint32_t token, uint32_t g, uint32_t lane) {
  constexpr uint32_t kPairs = kHeadDim / 2;
  constexpr uint32_t kPerLane = (kPairs + 31) / 32;
  constexpr uint32_t kAtOnce = 8;
  const uint32_t count = slot.entry.num_parts;
  float2 o[kAtOnce][kPerLane];
  const auto load = [&](uint32_t my_row, uint32_t first, uint32_t here) {
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint32_t row = __shfl_sync(~0u, my_row, (first + u) & 31);
      const float* from = args.partial_out + static_cast<uint64_t>(row) * kHeadDim;
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) {
        const uint32_t pair = lane + 32 * j;
        o[u][j] = {0.0f, 0.0f};
        if (first + u < here && pair < kPairs) o[u][j] = __ldcg(reinterpret_cast<const float2*>(from + 2 * pair));
      }
    }
  };
  // The first rows are on their way before anything is known of their weights.
  const auto lse_of = [&](uint32_t i, uint32_t row) {
    return Variant::kSoftmax && i < count ? __ldcg(args.partial_lse + row) : kMinusInf;
  };
  const float first_lse = lse_of(lane, slot.part + g);
  load(slot.part + g, 0, min(count, 32u));

  const Row row = find_row(args, work, token * work.group + g);
  const float extra = extra_logit(args, row.q_head);
  float most = fmaxf(extra, first_lse);
  for (uint32_t i = lane + 32; i < count; i += 32) {
    most = fmaxf(most, lse_of(i, find_part(args, work, slot.entry, i) + g));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  float sum = extra == kMinusInf ? 0.0f : exp2f(extra - most);
  float2 value[kPerLane];
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) value[j] = {0.0f, 0.0f};
  for (uint32_t first = 0; first < count; first += 32) {
    const uint32_t here = min(count - first, 32u);
    const uint32_t my_row = (first == 0 ? slot.part : find_part(args, work, slot.entry, first + lane)) + g;
    const float lse = first == 0 ? first_lse : lse_of(first + lane, my_row);
    float my_weight = 1.0f;
    if constexpr (Variant::kSoftmax) my_weight = lse == kMinusInf ? 0.0f : exp2f(lse - most);
    for (uint32_t i = 0; i < here; i += kAtOnce) {
      if (first + i != 0) load(my_row, i, here);
#pragma unroll
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const float weight = __shfl_sync(~0u, my_weight, (i + u) & 31);
        if (i + u >= here || weight == 0.0f) continue;
        sum += weight;
#pragma unroll
        for (uint32_t j = 0; j < kPerLane; ++j) {
          value[j].x += weight * o[u][j].x;
          value[j].y += weight * o[u][j].y;
        }
      }
    }
  }
  const float factor = Variant::kSoftmax && sum != 0.0f ? 1.0f / sum : 1.0f;
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
    const uint32_t pair = lane + 32 * j;
    if (pair >= kPairs) continue;
    write_output(args, row.q_row, row.q_head, row.position, 2 * pair, {value[j].x * factor, value[j].y * factor});
  }
  if (lane == 0 && args.lse != nullptr) {
    const float lse = !Variant::kSoftmax ? 0.0f : sum == 0.0f ? kMinusInf : most + log2f(sum);
    args.lse[static_cast<uint64_t>(row.q_row) * work.q_heads + row.q_head] = lse;
  }
}

// Counts the item's parts and merges the rows that they complete. A warp that worked alone does so for all query
// tokens; in a team thread i counts token i, and rows go to the warps in turns. `slot` is that of the warp's first row.
template <class Barrier>
__device__ __forceinline__ void merge_item(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                           const MergeSlot& slot, bool alone, uint32_t warp, uint32_t lane,
                                           const Barrier& barrier) {
  const uint32_t own = alone ? lane : warp * 32 + lane;
  const uint32_t index = own == 0 ? slot.index : find_merge(args, work, own);
  const uint32_t num_parts = own == 0 ? slot.entry.num_parts : find_entry(args, work, index).num_parts;
  if (alone) {
    __syncwarp();
  } else {
    barrier();  // all rows are written
  }
  const uint32_t mine = __ballot_sync(~0u, arrive_at_merge(args, index, num_parts));
  __syncwarp();
  if (!alone) {
    if (lane == 0) shared.last_tokens[warp] = mine;
    barrier();
  }
  const uint32_t rows = work.rows;
  for (uint32_t row = alone ? 0 : warp; row < rows; row += alone ? 1 : kConsumerWarps) {
    const uint32_t token = row / work.group;
    const uint32_t due = alone ? mine : shared.last_tokens[token / 32];
    if (!(due >> (token % 32) & 1)) continue;
    MergeSlot of_row = slot;
    if (token != (alone ? 0 : warp / work.group)) {
      of_row.index = find_merge(args, work, token);
      of_row.entry = find_entry(args, work, of_row.index);
      of_row.part = find_part(args, work, of_row.entry, lane);
    }
    merge_row(args, work, of_row, token, row - token * work.group, lane);
  }
}

}  // namespace fovea::decode
