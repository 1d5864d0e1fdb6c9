// fovea_merge_state and fovea_merge_states: attention over the union of disjoint parts of the KV, from the states of
// the parts: two of them (in place if wanted, with a mask of rows), or any number. Launched by
// attention/cuda_paged_ops.h.
//
//   Grid: merge_ctas() of kMergeThreads threads; merge_lanes() threads, within a warp, share a (row, head).
//   States are added in ascending order, so the same input gives the same bits.
//
// Compiled for FOVEA_HEAD_DIM, FOVEA_Q_DTYPE (of v), FOVEA_OUT_DTYPE (of v_out) and FOVEA_VEC (merge_vec()).
#pragma once

#include "abi/merge_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kMinusInfBits = 0xff800000u;

template <uint32_t kHeadDim, KvDType kIn, KvDType kOut, uint32_t kVec>
struct Merge {
  static constexpr uint32_t kLanes = abi::merge_lanes(kHeadDim, kVec);
  static constexpr uint32_t kUnroll = 4;  // states whose loads are in flight together
  static_assert(kHeadDim % kVec == 0, "whole runs");

  // The (row, head) of a thread. Of its lanes, the last one writes the log-sum-exp.
  struct Place {
    uint32_t row;
    uint32_t head;
    uint32_t lane;
    bool exists;
  };

  static __forceinline__ Place place_of(const abi::MergeArgs& args, uint32_t thread) {
    const uint32_t item = thread / kLanes;
    const uint32_t row = item / args.heads;
    return {row, item - row * args.heads, thread % kLanes, item < args.rows * args.heads};
  }

  static __forceinline__ void add(const Packed<kIn, kVec>& packed, float weight, float (&sum)[kVec]) {
    if (weight == 0.0f) return;  // what an empty state left in v may be NaN
    float x[kVec];
    unpack(packed, x);
#pragma unroll
    for (uint32_t i = 0; i < kVec; ++i) sum[i] = fma_of(weight, x[i], sum[i]);
  }

  static __forceinline__ void write(const abi::MergeArgs& args, const Place& place, uint32_t element, float scale,
                                    float (&sum)[kVec]) {
#pragma unroll
    for (uint32_t i = 0; i < kVec; ++i) sum[i] *= scale;
    const long long start = place.row * args.v_out_row_stride + place.head * args.v_out_head_stride;
    store(args.v_out, start + element, pack<kOut, kVec>(sum));
  }

  static __forceinline__ void write_lse(const abi::MergeArgs& args, const Place& place, float lse) {
    if (place.lane + 1 != kLanes || args.s_out == nullptr) return;
    args.s_out[place.row * args.s_out_row_stride + place.head * args.s_out_head_stride] = lse;
  }

  static __forceinline__ long long v_start(const abi::StateView& state, const Place& place) {
    return place.row * state.v_row_stride + place.head * state.v_head_stride;
  }
  static __forceinline__ const float* s_start(const abi::StateView& state, const Place& place) {
    return state.s + place.row * state.s_row_stride + place.head * state.s_head_stride;
  }

  // What thread `thread` does to merge args.a and args.b.
  static __forceinline__ void two(const abi::MergeArgs& args, uint32_t thread) {
    const Place place = place_of(args, thread);
    if (!place.exists) return;
    const bool only_a = args.mask != nullptr && args.mask[place.row] == 0;
    if (only_a && args.v_out == args.a.v && (args.s_out == args.a.s || args.s_out == nullptr)) return;
    const float s_a = *s_start(args.a, place);
    const float s_b = only_a ? bits_as_float(kMinusInfBits) : *s_start(args.b, place);
    warp_fence();  // s_out may be a.s: every lane has read it now
    const float max = s_a > s_b ? s_a : s_b;
    const bool empty = max == bits_as_float(kMinusInfBits);
    const float weight_a = empty ? 0.0f : exp2_of(s_a - max);
    const float weight_b = empty ? 0.0f : exp2_of(s_b - max);
    const float weight = weight_a + weight_b;
    for (uint32_t element = place.lane * kVec; element < kHeadDim; element += kLanes * kVec) {
      const Packed<kIn, kVec> a = load<kIn, kVec>(args.a.v, v_start(args.a, place) + element);
      const Packed<kIn, kVec> b = load<kIn, kVec>(args.b.v, v_start(args.b, place) + element);
      float sum[kVec] = {};
      add(a, weight_a, sum);
      add(b, weight_b, sum);
      write(args, place, element, empty ? 0.0f : 1.0f / weight, sum);
    }
    write_lse(args, place, empty ? max : max + log2_of(weight));
  }

  // What thread `thread` does to merge args.num_states states of args.a.
  static __forceinline__ void many(const abi::MergeArgs& args, uint32_t thread) {
    const Place place = place_of(args, thread);
    if (!place.exists) return;
    const float* s = s_start(args.a, place);
    float max = bits_as_float(kMinusInfBits);
    for (uint32_t i = 0; i < args.num_states; ++i) {
      const float next = s[i * args.s_state_stride];
      max = next <= max ? max : next;  // NaN wins
    }
    const bool empty = max == bits_as_float(kMinusInfBits);
    float weight = 0.0f;
    for (uint32_t i = 0; !empty && i < args.num_states; ++i) weight += exp2_of(s[i * args.s_state_stride] - max);
    const float lse = empty ? max : max + log2_of(weight);
    const float scale = empty ? 0.0f : 1.0f / weight;
    for (uint32_t element = place.lane * kVec; element < kHeadDim; element += kLanes * kVec) {
      float sum[kVec] = {};
      for (uint32_t i = 0; !empty && i < args.num_states; i += kUnroll) {
        Packed<kIn, kVec> v[kUnroll];
        float weights[kUnroll];
#pragma unroll
        for (uint32_t u = 0; u < kUnroll; ++u) {
          weights[u] = 0.0f;
          if (i + u < args.num_states) {
            v[u] = load<kIn, kVec>(args.a.v, v_start(args.a, place) + (i + u) * args.v_state_stride + element);
            weights[u] = exp2_of(s[(i + u) * args.s_state_stride] - max);
          }
        }
#pragma unroll
        for (uint32_t u = 0; u < kUnroll; ++u) add(v[u], weights[u], sum);
      }
      write(args, place, element, scale, sum);
    }
    write_lse(args, place, lse);
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_HEAD_DIM)
using FoveaMerge = fovea::kernels::Merge<FOVEA_HEAD_DIM, static_cast<fovea::abi::KvDType>(FOVEA_Q_DTYPE),
                                         static_cast<fovea::abi::KvDType>(FOVEA_OUT_DTYPE), FOVEA_VEC>;

extern "C" __global__ void __launch_bounds__(fovea::abi::kMergeThreads)
    fovea_merge_state(const __grid_constant__ fovea::abi::MergeArgs args) {
  fovea::kernels::wait_for_inputs();
  FoveaMerge::two(args, blockIdx.x * blockDim.x + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(fovea::abi::kMergeThreads)
    fovea_merge_states(const __grid_constant__ fovea::abi::MergeArgs args) {
  fovea::kernels::wait_for_inputs();
  FoveaMerge::many(args, blockIdx.x * blockDim.x + threadIdx.x);
}
#endif
