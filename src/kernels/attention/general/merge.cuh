// Partial states become rows of the output in the launch that made them, always in the order of the plan's list, so
// that the bits do not depend on who merges. Here: merges of parts that all lie in the workspace. Used by the
// consumers.
#pragma once

#include "kernels/attention/general/finish.cuh"

namespace fovea::attention {

// Merges a row by one warp, once its parts are there, and leaves the pattern behind. in_part: the row behind the first
// of each part.
__device__ __forceinline__ void merge_row(const Work& work, const PartList& list, uint32_t tile_row, uint32_t in_part) {
  const uint32_t lane = work.lane;
  constexpr uint32_t kPairs = kHeadDim / 2;
  constexpr uint32_t kPerLane = (kPairs + 31) / 32;
  constexpr uint32_t kAtOnce = 8;
  float2 o[kAtOnce][kPerLane];
  const auto load = [&](uint32_t first) {
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const float* const from = list.values(first + u < list.count ? first + u : 0, in_part);
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) {
        const uint32_t pair = lane + 32 * j;
        o[u][j] = {0.0f, 0.0f};
        if (first + u < list.count && pair < kPairs) o[u][j] = load_part2(from + 2 * pair);
      }
    }
  };
  const auto some_pending = [&] {
    bool some = false;
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) some |= pending(o[u][j]);
    }
    return some;
  };
  const auto lse_of = [&](uint32_t i) {
    if (!Variant::kSoftmax || i >= list.count) return kMinusInf;
    const float* const from = list.lse(i, in_part);
    return wait_for_part(from, load_part(from));
  };
  load(0);  // on their way before anything is known of their weights
  const Row row = find_row(work, tile_row);
  const float extra = extra_logit(*work.args, row.q_head);
  float most = extra;
#pragma unroll 1
  for (uint32_t i = lane; i < list.count; i += 32) most = fmaxf(most, lse_of(i));
  __syncwarp();
  most = warp_max(most);
  float sum = extra == kMinusInf ? 0.0f : exp2f(extra - most);
  float2 value[kPerLane];
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) value[j] = {0.0f, 0.0f};
  float my_weight = 0.0f;
#pragma unroll 1
  for (uint32_t first = 0; first < list.count; first += kAtOnce) {
    if (first % 32 == 0) {
      const uint32_t i = first + lane;
      my_weight = part_weight(lse_of(i), most);
      if (Variant::kSoftmax && i < list.count) restore_part(list.lse(i, in_part));
    }
    if (first != 0) load(first);
    while (some_pending()) load(first);
    __syncwarp();
    float weights[kAtOnce];
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) weights[u] = __shfl_sync(~0u, my_weight, (first + u) & 31);
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      if (first + u >= list.count) break;
      float* const from = list.values(first + u, in_part);
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) {
        const uint32_t pair = lane + 32 * j;
        if (pair < kPairs) restore_part2(from + 2 * pair);
      }
      if (weights[u] == 0.0f) continue;
      sum += weights[u];
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) {
        value[j].x += weights[u] * o[u][j].x;
        value[j].y += weights[u] * o[u][j].y;
      }
    }
  }
  const float factor = merged_factor(sum);
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
    const uint32_t pair = lane + 32 * j;
    if (pair >= kPairs) continue;
    write_output(*work.args, row.q_row, row.q_head, row.position, 2 * pair, {value[j].x * factor, value[j].y * factor});
  }
  if (lane == 0 && work.args->lse != nullptr) {
    lse_at(*work.args, row.q_row, work.q_heads, row.q_head) = merged_lse(most, sum);
  }
}

// A count of the parts of a row that are written or about to be, for rows that whoever comes last merges. A warp that
// works alone counts all query tokens, lane by lane; in a team thread i counts token i.
//
// Counted before the parts are written: between them a worker must not wait for others (the merges of its earlier items
// are behind it), or two could wait for one another.
struct MergeCount {
  uint32_t arrived;
  uint32_t num_parts;
  uint32_t index;

  __device__ __forceinline__ void arrive(const Work& work, const Ending& ending) {
    const uint32_t own = ending.alone ? work.lane : work.warp * 32 + work.lane;
    index = own == 0 ? ending.slot.index : find_merge(work, own);
    num_parts = own == 0 ? ending.slot.entry.num_parts : find_entry(work, index).num_parts;
    arrived = 0;
    if (index != abi::kNone) arrived = atomicAdd(work.args->merge_counters + index, 1u) + 1;
  }
  // The warp's tokens whose last part this was, as bits; leaves their counts as they were.
  __device__ __forceinline__ uint32_t due(const abi::AttentionArgs& args) const {
    const bool last = index != abi::kNone && arrived == num_parts;
    if (last) args.merge_counters[index] = 0;
    return __ballot_sync(~0u, last);
  }
};

// Merges rows whose parts all lie in the workspace: all of the item where it holds their first parts, else those that
// are due. of_tokens(i): due query tokens 32 i .. as bits.
template <class Due>
__device__ __forceinline__ void merge_rows(const Work& work, const Ending& ending, const Due& of_tokens) {
  const uint32_t warp = work.warp;
  const bool alone = ending.alone;
#pragma unroll 1
  for (uint32_t row = alone ? 0 : warp; row < work.rows; row += alone ? 1 : kConsumerWarps) {
    uint32_t in_part = row;
    abi::DeviceMerge entry = ending.slot.entry;
    if (ending.rule == MergeRule::kCounted) {
      const uint32_t token = row / work.group;
      in_part -= token * work.group;
      if (!(of_tokens(token / 32) >> (token % 32) & 1)) continue;
      if (token != (alone ? 0 : warp / work.group)) entry = find_entry(work, find_merge(work, token));
    }
    merge_row(work, PartList(work, entry), row, in_part);
  }
}

}  // namespace fovea::attention
