// The arguments of the kernels that merge attention states (kernels/cache/merge_states.cuh) and how many threads to
// launch. Filled by attention/cuda_paged_ops.cc, read by the kernels. Compiles under g++ and NVRTC.
#pragma once

#include "abi/access.h"

namespace fovea::abi {

// A state is the attention over part of the KV: v, the weighted mean of values, and s, the base-2 log-sum-exp of the
// logits. A state with s = -inf saw nothing: its v is not read. Strides are in elements; head_dim is contiguous.
struct StateView {
  const void* v;   // [rows, heads, head_dim]
  const float* s;  // [rows, heads]
  long long v_row_stride;
  long long v_head_stride;
  long long s_row_stride;
  long long s_head_stride;
};

struct MergeArgs {
  StateView a;
  StateView b;          // two states: the second one. More states: not used
  void* v_out;          // [rows, heads, head_dim]; two states: may be a.v
  float* s_out;         // [rows, heads], or null; two states: may be a.s
  const uint8_t* mask;  // two states: [rows] zero: the row is that of a, whatever b holds; or null
  long long v_out_row_stride;
  long long v_out_head_stride;
  long long s_out_row_stride;
  long long s_out_head_stride;
  long long v_state_stride;  // from one state of `a` to the next; more states
  long long s_state_stride;
  uint32_t rows;
  uint32_t heads;
  uint32_t num_states;  // more states: 0 gives v = 0, s = -inf
  uint32_t reserved;
};
static_assert(sizeof(MergeArgs) == 184);

inline constexpr uint32_t kMergeThreads = 256;  // a CTA

// Threads that share a (row, head): a power of two up to a warp, each takes every merge_lanes-th run of `vec` elements.
constexpr uint32_t merge_lanes(uint32_t head_dim, uint32_t vec) {
  uint32_t lanes = 1;
  while (lanes < 32 && lanes * vec < head_dim) lanes *= 2;
  return lanes;
}

// CTAs of kMergeThreads. The kernels count threads in 32 bits: fewer than 2^24 CTAs.
constexpr uint64_t merge_ctas(const MergeArgs& args, uint32_t head_dim, uint32_t vec) {
  const uint64_t threads = static_cast<uint64_t>(args.rows) * args.heads * merge_lanes(head_dim, vec);
  return (threads + kMergeThreads - 1) / kMergeThreads;
}

#if !defined(__CUDACC_RTC__)
// The run length to compile the kernels for: 8, 4, 2 or 1 elements. in_bytes, out_bytes: an element of v, of v_out.
inline uint32_t merge_vec(const MergeArgs& args, uint32_t head_dim, uint32_t in_bytes, uint32_t out_bytes) {
  uint32_t vec = 8;
  const auto limit = [&vec](uint32_t run) { vec = run < vec ? run : vec; };
  limit(aligned_run(args.a.v, args.a.v_row_stride, args.a.v_head_stride, in_bytes));
  limit(aligned_run(args.a.v, args.v_state_stride, 0, in_bytes));
  limit(aligned_run(args.b.v, args.b.v_row_stride, args.b.v_head_stride, in_bytes));
  limit(aligned_run(args.v_out, args.v_out_row_stride, args.v_out_head_stride, out_bytes));
  while (head_dim % vec != 0) vec /= 2;
  return vec;
}
#endif

}  // namespace fovea::abi
