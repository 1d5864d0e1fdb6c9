// The split-KV combine, as far as it is one for all kernels: how the state of a row becomes a row of the output or a
// partial state, which partial states of the plan make a row, how words of the workspace say that they are written, and
// what a part weighs beside the others. Parts are always added in the order of the plan's list. How states come
// together is each kernel's own: general/finish.cuh and merge.cuh, low_batch/finish.cuh, warp_per_worker/finish.cuh and
// shared_parts.cuh, prefix_forest/parts.cuh.
#pragma once

#include "kernels/attention/slice.cuh"

namespace fovea::attention {

// What a row's running output is divided by, and its base-2 log-sum-exp.
struct RowResult {
  float divisor;
  float lse;
};

// A row that saw nothing keeps output 0 and has log-sum-exp -inf. extra: base-2 logit without a value (a sink), or
// -inf. Maxima pass over NaN: a row that saw nothing else has max -inf too, but a sum of NaN, and so its log-sum-exp
// has to be, by which whoever combines the row weighs it.
__device__ __forceinline__ RowResult finish_row(float max, float sum, float extra) {
  if constexpr (!Variant::kSoftmax) return {1.0f, 0.0f};
  if (max == kMinusInf) return {1.0f, sum != sum ? sum : extra};
  if (extra == kMinusInf) return {sum, max + log2f(sum)};
  const float most = fmaxf(max, extra);
  return {sum + exp2f(extra - max), most + log2f(sum * exp2f(max - most) + exp2f(extra - most))};
}

// The same for a row of an item: NaN where its pages were not all in the pool.
__device__ __forceinline__ RowResult finish_row(const Work& work, float max, float sum, float extra) {
  RowResult result = finish_row(max, sum, extra);
  if constexpr (kChecked) {
    if (work.record->bad_pages != 0) result.divisor = result.lse = __int_as_float(0x7fffffff);
  }
  return result;
}

// fp8 values are stored without the scale of their head.
__device__ __forceinline__ void apply_value_scale(const abi::AttentionArgs& args, uint32_t kv_head, float& factor) {
  if constexpr (kFp8 && !kTokenScales) {
    if (args.pool.v_scale != nullptr) factor *= static_cast<const float*>(args.pool.v_scale)[kv_head];
  }
}

__device__ __forceinline__ float extra_logit(const abi::AttentionArgs& args, uint32_t q_head) {
  if constexpr (!Variant::kHasExtraLogit) return kMinusInf;
  return Variant::extra_logit(variant_params(args), static_cast<int>(q_head)) * fovea::variant::kLog2e;
}

// Two neighbouring columns of a row of the output, finished.
__device__ __forceinline__ void write_output(const abi::AttentionArgs& args, uint32_t q_row, uint32_t q_head,
                                             int32_t position, uint32_t column, float2 value) {
  if constexpr (Variant::kHasOutput) {
    const fovea::variant::RowPlace place{position, static_cast<int>(q_head), kHeadDim};
    value.x = Variant::output(variant_params(args), value.x, static_cast<int>(column), place);
    value.y = Variant::output(variant_params(args), value.y, static_cast<int>(column) + 1, place);
  }
  auto* to = static_cast<uint16_t*>(args.out) + static_cast<long long>(q_row) * args.out_row_stride +
             static_cast<long long>(q_head) * args.out_head_stride + column;
  *reinterpret_cast<uint32_t*>(to) = ptx::pack2<kQueryBf16>(value.x, value.y);
}

// Where a row's log-sum-exp goes, if args.lse asks for them.
__device__ __forceinline__ float& lse_at(const abi::AttentionArgs& args, uint32_t q_row, uint32_t q_heads,
                                         uint32_t q_head) {
  return args.lse[static_cast<uint64_t>(q_row) * q_heads + q_head];
}

// First partial row of the item under its KV head.
__device__ __forceinline__ uint32_t own_part(const Work& work) {
  return abi::partial_row(work.record->item, work.record->block_row, work.record->head, work.group);
}

// The merge of a row of the output under one KV head, which partial rows [nth * group, (nth + 1) * group) are parts of.
__device__ __forceinline__ uint32_t merge_of(const abi::AttentionArgs& args, const abi::DevicePlanHeader& header,
                                             uint32_t q_row, uint32_t head, uint32_t nth) {
  if (header.counts.flags & abi::kPlanShares) return abi::merge_number(header.counts, q_row, head);
  return section<uint32_t>(args, header.merge_of_partial)[nth];
}

// Values of a partial row; its log-sum-exp is args.partial_lse[row].
__device__ __forceinline__ float* partial_at(const abi::AttentionArgs& args, uint32_t row) {
  return args.partial_out + static_cast<uint64_t>(row) * kHeadDim;
}

// Nothing orders the accesses of different workers: a word that is not written yet holds kPartPending, so each word
// says for itself whether it is there, and whoever merges a row puts the pattern back for the next launch.
// docs/kernels/general.md has the protocol and why no worker waits forever.
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

__device__ __forceinline__ void add(float4& to, float weight, const float4& x) {
  to = {to.x + weight * x.x, to.y + weight * x.y, to.z + weight * x.z, to.w + weight * x.w};
}

}  // namespace fovea::attention
