// Partial states become rows of the output in the launch that made them: whoever finishes a row's last part merges all
// of them, in the order of the plan's list, so that the bits do not depend on who that was. Used by the consumers.
#pragma once

#include "kernels/decode/finish.cuh"

namespace fovea::decode {

// The merges that an item's query tokens belong to: thread i of the team looks up token i when the item begins.
struct MergeSlot {
  uint32_t index;
  uint32_t num_parts;
};

__device__ __forceinline__ MergeSlot find_merge(const abi::AttentionArgs& args, const Work& work, uint32_t token) {
  const abi::WorkItem& item = work.record->item;
  if ((item.flags & abi::kItemDirect) || token >= item.row_count) return {abi::kNone, 0};
  const auto* of_partial = reinterpret_cast<const uint32_t*>(args.plan + work.header->merge_of_partial);
  const auto* merges = reinterpret_cast<const abi::MergeEntry*>(args.plan + work.header->merges);
  const uint32_t first = abi::partial_row(item, work.record->block_row, work.record->head, work.group);
  const uint32_t index = of_partial[first / work.group + token];
  return {index, merges[index].num_parts};
}

// Counts this part as done; true when it was the last. The partial rows were written before, and a barrier passed.
__device__ __forceinline__ bool arrive_at_merge(const abi::AttentionArgs& args, const MergeSlot& slot) {
  if (slot.index == abi::kNone) return false;
  __threadfence();
  const bool last = atomicAdd(args.merge_counters + slot.index, 1u) + 1 == slot.num_parts;
  if (!last) return false;
  __threadfence();
  args.merge_counters[slot.index] = 0;
  return true;
}

__device__ __forceinline__ float load_partial_lse(const abi::AttentionArgs& args, uint32_t row) {
  return __ldcg(args.partial_lse + row);
}

// Merges query head g of the group of one entry. By one warp.
__device__ __forceinline__ void merge_row(const abi::AttentionArgs& args, const Work& work, uint32_t index, uint32_t g,
                                          uint32_t lane) {
  constexpr uint32_t kPairs = kHeadDim / 2;
  constexpr uint32_t kPerLane = (kPairs + 31) / 32;
  const abi::MergeEntry entry = reinterpret_cast<const abi::MergeEntry*>(args.plan + work.header->merges)[index];
  const auto* parts = reinterpret_cast<const uint32_t*>(args.plan + work.header->merge_parts) + entry.parts_begin;
  const uint32_t q_row = reinterpret_cast<const uint32_t*>(args.plan + work.header->row_indices)[entry.row];
  const int32_t position = reinterpret_cast<const int32_t*>(args.plan + work.header->q_pos)[entry.row];
  const uint32_t q_head = entry.head * work.group + g;
  const uint32_t count = entry.num_parts;
  const float extra = extra_logit(args, q_head);
  float most = extra;
  if constexpr (Variant::kSoftmax) {
    for (uint32_t i = lane; i < count; i += 32) most = fmaxf(most, load_partial_lse(args, parts[i] + g));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  }
  float sum = extra == kMinusInf ? 0.0f : exp2f(extra - most);
  float2 value[kPerLane];
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) value[j] = {0.0f, 0.0f};
  for (uint32_t first = 0; first < count; first += 32) {
    const uint32_t here = min(count - first, 32u);
    const uint32_t my_part = lane < here ? parts[first + lane] + g : 0;
    float my_weight = 0.0f;
    if (lane < here) {
      my_weight = 1.0f;
      if constexpr (Variant::kSoftmax) {
        const float lse = load_partial_lse(args, my_part);
        my_weight = lse == kMinusInf ? 0.0f : exp2f(lse - most);
      }
    }
    constexpr uint32_t kAtOnce = 8;
    for (uint32_t i = 0; i < here; i += kAtOnce) {
      float2 o[kAtOnce][kPerLane];
      float weight[kAtOnce];
#pragma unroll
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t from = (i + u) & 31;
        weight[u] = __shfl_sync(~0u, my_weight, from);
        const uint32_t part = __shfl_sync(~0u, my_part, from);
        const float* row = args.partial_out + static_cast<uint64_t>(part) * kHeadDim;
#pragma unroll
        for (uint32_t j = 0; j < kPerLane; ++j) {
          const uint32_t pair = lane + 32 * j;
          o[u][j] = {0.0f, 0.0f};
          if (i + u < here && pair < kPairs) o[u][j] = __ldcg(reinterpret_cast<const float2*>(row + 2 * pair));
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        if (i + u >= here || weight[u] == 0.0f) continue;
        sum += weight[u];
#pragma unroll
        for (uint32_t j = 0; j < kPerLane; ++j) {
          value[j].x += weight[u] * o[u][j].x;
          value[j].y += weight[u] * o[u][j].y;
        }
      }
    }
  }
  const float factor = Variant::kSoftmax && sum != 0.0f ? 1.0f / sum : 1.0f;
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
    const uint32_t pair = lane + 32 * j;
    if (pair >= kPairs) continue;
    write_output(args, q_row, q_head, position, 2 * pair, {value[j].x * factor, value[j].y * factor});
  }
  if (lane == 0 && args.lse != nullptr) {
    const float lse = !Variant::kSoftmax ? 0.0f : sum == 0.0f ? kMinusInf : most + log2f(sum);
    args.lse[static_cast<uint64_t>(q_row) * work.q_heads + q_head] = lse;
  }
}

// A warp that worked alone: lane i has the merge of query token i.
__device__ __forceinline__ void merge_alone(const abi::AttentionArgs& args, const Work& work, const MergeSlot& slot,
                                            uint32_t lane) {
  __syncwarp();
  uint32_t due = __ballot_sync(~0u, arrive_at_merge(args, slot));
  __syncwarp();
  while (due != 0) {
    const uint32_t token = __ffs(static_cast<int>(due)) - 1;
    due &= due - 1;
    const uint32_t index = __shfl_sync(~0u, slot.index, token);
    for (uint32_t g = 0; g < work.group; ++g) merge_row(args, work, index, g, lane);
  }
}

// The whole team: thread i has the merge of query token i.
template <class Barrier>
__device__ __forceinline__ void merge_together(const abi::AttentionArgs& args, const Work& work, SharedMemory& shared,
                                               const MergeSlot& slot, uint32_t warp, uint32_t lane,
                                               const Barrier& barrier) {
  barrier();  // all rows are written
  const uint32_t mine = __ballot_sync(~0u, arrive_at_merge(args, slot));
  if (lane == 0) shared.last_tokens[warp] = mine;
  barrier();
  const uint32_t tokens = work.record->item.row_count;
  const auto* of_partial = reinterpret_cast<const uint32_t*>(args.plan + work.header->merge_of_partial);
  const uint32_t first =
      abi::partial_row(work.record->item, work.record->block_row, work.record->head, work.group) / work.group;
  for (uint32_t row = warp; row < tokens * work.group; row += kConsumerWarps) {
    const uint32_t token = row / work.group;
    if (!(shared.last_tokens[token / 32] >> (token % 32) & 1)) continue;
    merge_row(args, work, of_partial[first + token], row - token * work.group, lane);
  }
}

}  // namespace fovea::decode
