// The argument of the append kernel (kernels/cache/append.cuh), where each row goes, and how many threads to launch.
// Filled by attention/cuda_paged_ops.cc, read by the kernel. Compiles under g++ and NVRTC.
#pragma once

#include "abi/access.h"
#include "abi/kv_pool.h"

namespace fovea::abi {

// Rows come with either slots or (batch_indices, positions, page lists). Strides are in elements; the last dim of every
// tensor is contiguous. k, v or q may be null with zero heads: then that part is left out.
struct AppendArgs {
  const void* k;  // [rows, num_kv_heads, head_dim]
  const void* v;  // the same shape
  const void* q;  // [rows, num_qo_heads, head_dim], to be rotated; may be q_out
  void* q_out;    // [rows, num_qo_heads, head_dim]
  long long k_row_stride;
  long long k_head_stride;
  long long v_row_stride;
  long long v_head_stride;
  long long q_row_stride;
  long long q_head_stride;
  long long q_out_row_stride;
  long long q_out_head_stride;
  const int32_t* slots;           // [rows] page * page_tokens + token of the page, negative: skip the row; or null
  const int32_t* batch_indices;   // [rows] which page list, negative: skip the row; used where slots is null
  const int32_t* positions;       // [rows] token of the run that the page list names; negative: skip the row
  const int32_t* page_entries;    // the page lists, one after another; an entry names pool.entry_tokens tokens
  const int32_t* list_begin;      // [num_lists + 1], or null: list i starts at i * list_stride, with that many entries
  const int32_t* rope_positions;  // [rows] what q and k are rotated by; kernels compiled to rotate only
  const float* inv_freq;          // [rotary_dim / 2] radians a position
  uint32_t* error;                // null, or a word that was zero: afterwards ~row of the first row whose slot, list or
                                  // page is out of range, or still zero. Such rows are skipped, with or without it.
  float attention_factor;         // multiplies cosines and sines: 1 except for YaRN
  uint32_t rotary_dim;            // leading dims that rotate: dims i and i + rotary_dim / 2 are a pair; 0: none
  uint32_t rows;
  uint32_t num_kv_heads;
  uint32_t num_qo_heads;
  uint32_t num_lists;
  uint32_t list_stride;
  uint32_t num_page_entries;  // length of page_entries; 0: not known, not checked
  // f32, f16, bf16; e4m3 with granularity kNone or kHead: stored = x / scale; and those with a scale for each token and
  // head, where positions rotate nothing.
  KvPoolView pool;
};
static_assert(sizeof(AppendArgs) == 192 + sizeof(KvPoolView));

enum class AppendTarget : uint8_t { kWrite, kSkip, kOutOfRange };

struct AppendSlot {
  AppendTarget target;
  long long element;  // of KV head 0, in the pool; when kWrite
  long long scale;    // number of its KvScale, in pools that have one a token and head
};

// Where row `row` goes.
constexpr AppendSlot append_slot(const AppendArgs& args, uint32_t row) {
  const KvPoolView& pool = args.pool;
  if (args.slots != nullptr) {
    const int32_t slot = args.slots[row];
    if (slot < 0) return {AppendTarget::kSkip, 0, 0};
    const int32_t page = slot / pool.page_tokens;
    if (page >= pool.num_pages) return {AppendTarget::kOutOfRange, 0, 0};
    const int32_t token = slot - page * pool.page_tokens;
    return {AppendTarget::kWrite, page * pool.page_stride + token * pool.token_stride,
            page * pool.scale_page_stride + token};
  }
  const int32_t list = args.batch_indices[row];
  const int32_t position = args.positions[row];
  if (list < 0 || position < 0) return {AppendTarget::kSkip, 0, 0};
  if (static_cast<uint32_t>(list) >= args.num_lists) return {AppendTarget::kOutOfRange, 0, 0};
  const int32_t nth = position / pool.entry_tokens;
  const bool compressed = args.list_begin != nullptr;
  const long long begin = compressed ? args.list_begin[list] : static_cast<long long>(list) * args.list_stride;
  const long long end = compressed ? args.list_begin[list + 1] : begin + args.list_stride;
  if (begin < 0 || begin + nth >= end) return {AppendTarget::kOutOfRange, 0, 0};
  if (args.num_page_entries != 0 && begin + nth >= args.num_page_entries) return {AppendTarget::kOutOfRange, 0, 0};
  const int32_t entry = args.page_entries[begin + nth];
  if (entry < 0 || entry / pool.entries_per_page >= pool.num_pages) return {AppendTarget::kOutOfRange, 0, 0};
  const int32_t token = entry % pool.entries_per_page * pool.entry_tokens + position - nth * pool.entry_tokens;
  const int32_t page = entry / pool.entries_per_page;
  return {AppendTarget::kWrite, page * pool.page_stride + token * pool.token_stride,
          page * pool.scale_page_stride + token};
}

// A thread takes one unit of a row: two runs of `vec` elements, of up to kAppendHeads heads. Where heads rotate, the
// runs are the two sides of `vec` pairs, so that a thread needs no other one's elements and its angles serve all its
// heads.
inline constexpr uint32_t kAppendThreads = 256;  // a CTA
inline constexpr uint32_t kAppendHeads = 4;

struct UnitRuns {
  uint32_t first;  // element of the head that the first run starts at
  uint32_t second;
  bool rotates;
};

// Unit [0, head_dim / (2 * vec)) of a head whose leading rotary_dim elements rotate.
constexpr UnitRuns unit_runs(uint32_t unit, uint32_t vec, uint32_t head_dim, uint32_t rotary_dim) {
  const uint32_t half = rotary_dim / 2;
  const uint32_t at = unit * vec;
  if (at < half) return {at, at + half, true};
  return {half + at, half + at + (head_dim - rotary_dim) / 2, false};
}

// The threads of one row: units of groups of K heads, then of V heads, then of query heads.
constexpr uint32_t head_groups(uint32_t heads) { return (heads + kAppendHeads - 1) / kAppendHeads; }
constexpr uint32_t append_threads_a_row(const AppendArgs& args, uint32_t vec, uint32_t head_dim) {
  const uint32_t groups = 2 * head_groups(args.num_kv_heads) + head_groups(args.num_qo_heads);
  return groups * (head_dim / (2 * vec));
}

// CTAs of kAppendThreads. The kernel counts threads in 32 bits: fewer than 2^24 CTAs, or split the rows.
constexpr uint64_t append_ctas(const AppendArgs& args, uint32_t vec, uint32_t head_dim) {
  const uint64_t threads = static_cast<uint64_t>(args.rows) * append_threads_a_row(args, vec, head_dim);
  return (threads + kAppendThreads - 1) / kAppendThreads;
}

// The same for pools with a scale for each token and head: a row of a head of K or of V a thread.
constexpr uint64_t quantizing_ctas(const AppendArgs& args) {
  return (uint64_t{2} * args.rows * args.num_kv_heads + kAppendThreads - 1) / kAppendThreads;
}

#if !defined(__CUDACC_RTC__)
// The run length to compile the kernel for. in_bytes, pool_bytes: an element of k, v and q, of the pool.
inline uint32_t append_vec(const AppendArgs& args, uint32_t head_dim, uint32_t in_bytes, uint32_t pool_bytes) {
  const KvPoolView& pool = args.pool;
  uint32_t vec = 8;
  const auto limit = [&vec](const void* start, long long stride, long long other_stride, uint32_t bytes) {
    const uint32_t run = aligned_run(start, stride, other_stride, bytes);
    vec = run < vec ? run : vec;
  };
  limit(args.k, args.k_row_stride, args.k_head_stride, in_bytes);
  limit(args.v, args.v_row_stride, args.v_head_stride, in_bytes);
  limit(args.q, args.q_row_stride, args.q_head_stride, in_bytes);
  limit(args.q_out, args.q_out_row_stride, args.q_out_head_stride, in_bytes);
  limit(pool.k, pool.page_stride, pool.token_stride, pool_bytes);
  limit(pool.v, pool.page_stride, pool.head_stride, pool_bytes);
  while (vec > 1 && (head_dim % (2 * vec) != 0 || args.rotary_dim / 2 % vec != 0)) vec /= 2;
  return vec;
}
#endif

}  // namespace fovea::abi
