// From a token of a run to its row in the pool: the run's page list has the entry that holds the token, and an entry is
// a page or a piece of one. Used by all loaders.
#pragma once

#include "kernels/attention/queue.cuh"

namespace fovea::attention {

// An entry and a token in it become a page and a token in that.
template <typename Page, typename Token>
__device__ __forceinline__ void find_page(const abi::KvPoolView& pool, Page& entry, Token& in_entry) {
  if (pool.entries_per_page > 1) {
    in_entry += static_cast<int32_t>(entry) % pool.entries_per_page * pool.entry_tokens;
    entry = static_cast<int32_t>(entry) / pool.entries_per_page;
  }
}

// Byte offset of a token's row in K and in V.
__device__ __forceinline__ uint64_t pool_row(const abi::KvPoolView& pool, uint32_t head, long long page,
                                             long long in_page) {
  return static_cast<uint64_t>(page * pool.page_stride + in_page * pool.token_stride +
                               static_cast<long long>(head) * pool.head_stride) *
         kElementBits / 8;
}
// Number of a token's abi::KvScale.
__device__ __forceinline__ uint64_t pool_scale(const abi::KvPoolView& pool, uint32_t head, long long page,
                                               long long in_page) {
  return static_cast<uint64_t>(page * pool.scale_page_stride + static_cast<long long>(head) * pool.scale_head_stride +
                               in_page);
}

// Where a token lies: pool_row(), and where tokens have scales pool_scale().
struct TokenPlace {
  uint64_t row;
  uint64_t scale;

  // Tokens outside of the run take the place of its nearest one.
  __device__ __forceinline__ static TokenPlace of(const abi::AttentionArgs& args, const Run& run, uint32_t token,
                                                  [[maybe_unused]] ItemRecord* record) {
    const abi::KvPoolView& pool = args.pool;
    const uint32_t entry_tokens = static_cast<uint32_t>(pool.entry_tokens);
    token = min(max(token, run.begin), run.end - 1);
    const uint32_t entry = token / entry_tokens;
    long long page = args.page_entries[run.list_begin + entry];
    long long in_page = token - entry * entry_tokens;
    if constexpr (kChecked) {
      if (static_cast<uint64_t>(page) >= uint64_t{args.num_pages} * pool.entries_per_page) {
        record->bad_pages = 1;
        page = 0;
      }
    }
    find_page(pool, page, in_page);
    TokenPlace place{};
    place.row = pool_row(pool, run.head, page, in_page);
    if constexpr (kTokenScales) place.scale = pool_scale(pool, run.head, page, in_page);
    return place;
  }
};

// 64 page entries of a run, two a lane: the ones in use and the ones after them, which are on their way.
struct PageWindow {
  uint32_t first;  // entry of the run that lane 0 holds in `current`
  uint32_t last;   // entry of the run's last token
  const int32_t* list;
  int32_t current;
  int32_t next;

  __device__ __forceinline__ int32_t at(uint32_t entry) const { return list[entry < last ? entry : last]; }
  __device__ __forceinline__ void open(const abi::AttentionArgs& args, const Run& run, uint32_t lane) {
    if (run.stages() == 0) return;
    const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
    list = args.page_entries + run.list_begin;
    first = run.begin / entry_tokens;
    last = (run.end - 1) / entry_tokens;
    current = at(first + lane);
    next = first + 32 <= last ? at(first + 32 + lane) : 0;
  }
  __device__ __forceinline__ void move_to(uint32_t entry, uint32_t lane) {
    while (entry >= first + 32) {
      current = next;
      first += 32;
      next = first + 32 <= last ? at(first + 32 + lane) : 0;
    }
  }
  // By all lanes; `entry` is within the 64.
  __device__ __forceinline__ int32_t get(uint32_t entry) const {
    const uint32_t i = entry - first;
    const int32_t a = __shfl_sync(~0u, current, i & 31);
    const int32_t b = __shfl_sync(~0u, next, i & 31);
    return i < 32 ? a : b;
  }
};

}  // namespace fovea::attention
