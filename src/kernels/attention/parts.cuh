// Partial states in the workspace. Nothing orders the accesses of different workers: a word that is not written yet
// holds kPartPending, so each word says for itself whether it is there, and whoever merges a row puts the pattern back
// for the next launch. docs/kernels/general.md has the protocol and why nobody waits forever. Used by finish.cuh and
// merge.cuh.
#pragma once

#include "kernels/attention/slice.cuh"

namespace fovea::attention {

// Who merges the rows of an item.
enum class MergeRule : uint32_t {
  kNone,     // they are finished: written directly, or a part that the worker of another one waits for
  kFirst,    // this worker: it holds the first part, and waits for the others
  kCounted,  // whoever writes a row's last part
};

__device__ __forceinline__ MergeRule merge_rule(const Work& work) {
  const uint32_t flags = work.record->item.flags;
  if (flags & abi::kItemDirect) return MergeRule::kNone;
  // Where queues are claimed, a worker might wait for one that stands behind it in the same CTA.
  const bool first_merges = work.args->first_merges != 0 && (flags & abi::kItemSingleHead) &&
                            (work.record->block_row.flags & abi::kRowsSolo) && work.header->num_workers <= gridDim.x;
  if (!first_merges) return MergeRule::kCounted;
  return flags & abi::kItemFirstPart ? MergeRule::kFirst : MergeRule::kNone;
}

// One merge of the plan as a warp sees it. Its fields are looked up one after the other while other work goes on:
// index when an item begins, entry and list when its queries are asked for.
struct MergeSlot {
  uint32_t index;
  abi::MergeEntry entry;
};

// token: of the item, or beyond it.
__device__ __forceinline__ uint32_t find_merge(const Work& work, uint32_t token) {
  const abi::WorkItem& item = work.record->item;
  if (token >= item.row_count) return abi::kNone;
  const auto* of_partial = reinterpret_cast<const uint32_t*>(work.args->plan + work.header->merge_of_partial);
  const uint32_t first = abi::partial_row(item, work.record->block_row, work.record->head, work.group);
  return of_partial[first / work.group + token];
}
__device__ __forceinline__ abi::MergeEntry find_entry(const Work& work, uint32_t index) {
  if (index == abi::kNone) return abi::MergeEntry{};
  return reinterpret_cast<const abi::MergeEntry*>(work.args->plan + work.header->merges)[index];
}

// First partial rows of the parts that a merge is made of, in order.
struct PartList {
  const abi::AttentionArgs* args;
  const uint32_t* first_rows;
  uint32_t count;

  __device__ __forceinline__ PartList(const Work& work, const abi::MergeEntry& entry)
      : args(work.args),
        first_rows(reinterpret_cast<const uint32_t*>(args->plan + work.header->merge_parts) + entry.parts_begin),
        count(entry.num_parts) {}
  // Brings the list into the first-level cache.
  __device__ __forceinline__ void touch(uint32_t lane) const {
    if (8 * lane < count) asm volatile("prefetch.global.L1 [%0];" ::"l"(first_rows + 8 * lane));
  }
  // Addresses of a row of part i; in_part: behind the first.
  __device__ __forceinline__ float* values(uint32_t i, uint32_t in_part) const {
    return args->partial_out + static_cast<uint64_t>(first_rows[i] + in_part) * kHeadDim;
  }
  __device__ __forceinline__ float* lse(uint32_t i, uint32_t in_part) const {
    return args->partial_lse + first_rows[i] + in_part;
  }
};

__device__ __forceinline__ bool pending(float x) { return __float_as_uint(x) == abi::kPartPending; }
__device__ __forceinline__ bool pending(float2 x) { return pending(x.x) || pending(x.y); }
__device__ __forceinline__ float part_word(float x) { return pending(x) ? __uint_as_float(0x7fffffffu) : x; }

__device__ __forceinline__ void store_part(float* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(part_word(x.x)), "f"(part_word(x.y))
               : "memory");
}
__device__ __forceinline__ void store_part(float* to, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(part_word(x)) : "memory");
}
__device__ __forceinline__ float2 load_part2(const float* from) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ float load_part(const float* from) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}
// Behind the loads of the same words by the same thread.
__device__ __forceinline__ void restore_part2(float* at) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %1};" ::"l"(at), "r"(abi::kPartPending) : "memory");
}
__device__ __forceinline__ void restore_part(float* at) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(at), "r"(abi::kPartPending) : "memory");
}

// A word of a part once it is there. x: as loaded before.
__device__ __forceinline__ float wait_for_part(const float* from, float x) {
  while (pending(x)) x = load_part(from);
  return x;
}

// Weight of a part whose row has this log-sum-exp, beside the largest one; what becomes of the row, by the sum of the
// weights: what its sum of parts is multiplied by, and its own log-sum-exp.
__device__ __forceinline__ float part_weight(float lse, float most) {
  if constexpr (!Variant::kSoftmax) return 1.0f;
  return lse == kMinusInf ? 0.0f : exp2f(lse - most);
}
__device__ __forceinline__ float merged_factor(float sum) {
  return Variant::kSoftmax && sum != 0.0f ? 1.0f / sum : 1.0f;
}
__device__ __forceinline__ float merged_lse(float most, float sum) {
  return !Variant::kSoftmax ? 0.0f : sum == 0.0f ? kMinusInf : most + log2f(sum);
}

}  // namespace fovea::attention
