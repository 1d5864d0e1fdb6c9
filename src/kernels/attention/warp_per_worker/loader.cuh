// A worker's own loader: it goes through its pairs, from where it begins to where the next worker does, slice by slice,
// some slices ahead of the arithmetic, and prepares the records that the arithmetic reads. By TMA where pages hold
// whole slices, else 16 bytes a thread. The warps of a team go through the pairs and divide the copies: one brings
// records and keys (by TMA all), the other one values. Nothing here waits for another warp.
#pragma once

#include "kernels/attention/pages.cuh"
#include "kernels/attention/warp_per_worker/shared_parts.cuh"

namespace fovea::attention::warp_per_worker {

// Byte offsets in the pool of 32 tokens' rows, a lane each, and of the 32 behind them, which are on their way.
struct RowWindow {
  uint32_t first;  // token of the run that lane 0 holds in `current`
  TokenPlace current;
  TokenPlace next;

  __device__ __forceinline__ void open(const abi::AttentionArgs& args, const Run& run, uint32_t lane) {
    first = run.begin & ~(kTokens - 1u);
    current = TokenPlace::of(args, run, first + lane, nullptr);
    next = TokenPlace::of(args, run, first + 32 + lane, nullptr);
  }
  __device__ __forceinline__ void move_to(const abi::AttentionArgs& args, const Run& run, uint32_t token,
                                          uint32_t lane) {
    if (token < first + 32) return;
    current = next;
    first += 32;
    next = TokenPlace::of(args, run, first + 32 + lane, nullptr);
  }
};

__device__ __forceinline__ const abi::WarpStart* starts_of(const abi::AttentionArgs& args) {
  return section<abi::WarpStart>(args, abi::kWorkerStartOffset);
}

// What a lane copies of a slot whose slices lie in one page each: chunks of every kRows-th row of one slice, and its
// tokens' scales. All but the page is worked out once an item.
struct PageCopy {
  static constexpr uint32_t kChunks = kRowBytes / 16;
  static constexpr uint32_t kLanes = 32 / kSlotSlices;  // of a slice
  static constexpr bool kFits = kLanes % kChunks == 0 && kLanes / kChunks <= kTokens && !kTma && kWholeSlices;
  static constexpr uint32_t kRows = kLanes / kChunks;
  uint64_t from;  // byte offset in the pool, and in shared memory
  uint32_t to;
  uint64_t scale;  // number of the token's KvScale
  uint64_t page_bytes, token_bytes;

  __device__ __forceinline__ void open(const abi::KvPoolView& pool, uint32_t head, uint32_t lane) {
    const uint32_t row = lane % kLanes / kChunks, chunk = lane % kChunks;
    page_bytes = static_cast<uint64_t>(pool.page_stride) * kElementBits / 8;
    token_bytes = static_cast<uint64_t>(pool.token_stride) * kElementBits / 8;
    from = static_cast<uint64_t>(pool.head_stride) * kElementBits / 8 * head + row * token_bytes + chunk * 16;
    to = lane / kLanes * 2 * kTile + SliceTile::chunk(row, chunk);
    scale = static_cast<uint64_t>(pool.scale_head_stride) * head + lane % kTokens;
  }
  // page, in_page: where the lane's slice begins. slot, scales: addresses of the slot's tiles and of its scales.
  __device__ __forceinline__ void copy(const abi::KvPoolView& pool, uint32_t page, uint32_t in_page, uint32_t slot,
                                       uint32_t scales, uint32_t lane, bool brings_keys, bool brings_values) const {
    const auto* k = static_cast<const uint8_t*>(pool.k) + (from + page * page_bytes + in_page * token_bytes);
    const auto* v = k + (static_cast<const uint8_t*>(pool.v) - static_cast<const uint8_t*>(pool.k));
    const uint32_t at = slot + to;
#pragma unroll
    for (uint32_t first = 0; first < kTokens; first += kRows) {
      // Rows of a round differ from those of another in bits of their own, so swizzles add up.
      const uint32_t here = (at ^ swizzle_of(first) << 4) + first * kPanelBytes;
      if (brings_keys) ptx::cp_async_16(here, k);
      if (brings_values) ptx::cp_async_16(here + kTile, v);
      k += kRows * token_bytes;
      v += kRows * token_bytes;
    }
    if constexpr (kTokenScales) {
      const uint64_t number = scale + (page * static_cast<uint64_t>(pool.scale_page_stride) + in_page);
      if constexpr (kSlotSlices == 2) {
        if (brings_keys) ptx::cp_async_4(scales + 8 * lane, static_cast<const abi::KvScale*>(pool.k_scale) + number);
        if (brings_values) {
          ptx::cp_async_4(scales + 8 * lane + 4, static_cast<const abi::KvScale*>(pool.v_scale) + number);
        }
      } else if (brings_keys) {
        const auto* const base = static_cast<const abi::KvScale*>(lane < 16 ? pool.k_scale : pool.v_scale);
        ptx::cp_async_4(scales + lane % 16 * 8 + lane / 16 * 4, base + number);
      }
    }
  }
};
static_assert(kSlotSlices == 1 || kSlotSlices == 2 || (kSlotSlices == 4 && kTma));

class Loader {
 public:
  // worker: number of this warp among the plan's workers; there must be one.
  __device__ __forceinline__ Loader(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                    const abi::TensorMap* v_map, SharedMemory& shared, uint32_t worker, uint32_t warp,
                                    uint32_t lane)
      : args_(args),
        k_map_(k_map),
        v_map_(v_map),
        shared_(shared),
        team_(warp / kTeamWarps),
        brings_keys_(warp % kTeamWarps == first_of(warp)),
        brings_values_(kTeamWarps == 1 || !brings_keys_),
        lane_(lane) {
    // This worker's abi::WarpStart, and the next one's.
    const auto* const start = reinterpret_cast<const uint32_t*>(starts_of(args) + worker);
    starts_ = lane < 2 * kStartWords ? start[lane] : 0;
    const bool idle = own(kPair) == next(kPair) && own(kPartialSlot) == next(kPartialSlot);
    if (!idle) find_pair(own(kPair));
    run_ = {own(kListBegin), own(kBegin), own(kEnd), abi::queue_head(own(kPair))};
    token_ = abi::kNone;  // behind every run: load() begins with the item
  }

  // Of the first item, before load(): see SharedMemory::first_parts.
  __device__ __forceinline__ uint32_t first_part() const {
    static_assert(kWholePair == abi::kNone);  // the slot of an item that is no part
    return pair_ == abi::kNone ? kNoWork : own(kPartialSlot);
  }

  // Which warp of a team brings keys: of teams beside each other not that of the same scheduler of the SM.
  __device__ __forceinline__ static uint32_t first_of(uint32_t warp) { return warp / kTeamWarps / 2 % kTeamWarps; }

  // TMA is one warp's business.
  __device__ __forceinline__ bool works() const { return !kTma || kTokenScales || brings_keys_; }

  // Brings the next slot, and commits one group of copies: the warp's of its bytes (unless TMA brings them) and
  // of the record that came before it. Without work left it only commits.
  __device__ __forceinline__ void load() {
    if (token_ >= run_.end && run_.head != kEndOfWork) next_item();
    if (run_.head != kEndOfWork) {
      load_slot();
      slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    ptx::cp_async_commit();
  }

 private:
  // Words of abi::WarpStart: of this worker's, and of the next one's, in which its work ends.
  enum : int { kPair, kListBegin, kBegin, kEnd, kPartialSlot, kPart, kStartWords };
  __device__ __forceinline__ uint32_t own(int word) const { return __shfl_sync(~0u, starts_, word); }
  __device__ __forceinline__ uint32_t next(int word) const { return __shfl_sync(~0u, starts_, kStartWords + word); }

  __device__ __forceinline__ const abi::DevicePlanHeader& header() const {
    return *reinterpret_cast<const abi::DevicePlanHeader*>(args_.plan);
  }

  __device__ __forceinline__ void find_pair(uint32_t pair) {
    if (abi::queue_item(pair) != abi::queue_item(pair_)) {  // none is kNone's
      const auto* const words = section<uint32_t>(args_, header().items) + 8 * abi::queue_item(pair);
      word_ = lane_ < 8 ? words[lane_] : 0;
    }
    pair_ = pair;
  }

  // The pair behind pair_, unless it is the next worker's.
  __device__ __forceinline__ void find_next_pair() {
    const uint32_t end = next(kPair);
    const bool last_head = abi::queue_head(pair_) + 1 == header().counts.num_kv_heads;
    const uint32_t pair = last_head ? abi::queue_entry(abi::queue_item(pair_) + 1, 0) : pair_ + 1;
    if (pair_ == end || (pair == end && (next(kPart) & 0xffffu) == 0)) {
      pair_ = abi::kNone;
    } else {
      find_pair(pair);
    }
  }

  // Its pages first: the first item of all is known by its run before its other words are there.
  __device__ __forceinline__ void next_item() {
    const bool first = records_ == 0;
    ItemRecord& record = shared_.records[team_][records_++ % kRecordsAhead];
    if (pair_ == abi::kNone) {
      run_.head = kEndOfWork;
      if (lane_ == 0 && brings_keys_) record.head = kEndOfWork;
      return;
    }
    const auto of = [&](int i) { return __shfl_sync(~0u, word_, i); };  // see abi::WorkItem
    uint32_t slot = abi::kNone, part = 0;
    if (first) {
      slot = own(kPartialSlot);
      part = own(kPart);
    } else {
      run_ = {of(2), of(3), of(4), abi::queue_head(pair_)};
      if (pair_ == next(kPair)) {  // the first part of it; the next worker begins with the second
        run_.end = next(kBegin);
        slot = next(kPartialSlot) - (kDrafts ? of(1) & 0xffff : 1) * header().counts.group;
        part = next(kPart) - 1;
      }
    }
    const auto* const block_rows = section<abi::BlockRow>(args_, header().block_rows);
    if (args_.kv_lens != nullptr) {
      const uint32_t flags = run_.end == of(4) ? of(1) >> 24 : 0, length_slot = of(5);
      if ((flags & abi::kItemOpenEnd) != 0 && length_slot != abi::kNone) {
        run_.end =
            open_end(args_, flags, run_.end, length_slot, args_.kv_lens[length_slot], block_rows[of(6)].position_base);
      }
    }
    token_ = run_.begin & ~(kTokens - 1u);
    if (run_.end > run_.begin) {
      if constexpr (kWholeSlices) {
        pages_.open(args_, run_, lane_);
        const uint32_t entry_tokens = static_cast<uint32_t>(args_.pool.entry_tokens);
        page_ = token_ / entry_tokens;
        in_page_ = token_ - page_ * entry_tokens;
        if constexpr (PageCopy::kFits) copy_.open(args_.pool, run_.head, lane_);
      } else {
        rows_.open(args_, run_, lane_);
      }
    }
    const uint32_t row = of(0), row_count = kDrafts ? of(1) & 0xffff : 1;
    const abi::BlockRow* const block_row = block_rows + of(6);
    if (brings_keys_) write_record(row, row_count, block_row, slot, part, record);
    find_next_pair();
  }

  // The item is its tile's, but for what a part of it is; kv_len says where it ends. row: of its first query token.
  __device__ __forceinline__ void write_record(uint32_t row, uint32_t row_count, const abi::BlockRow* from,
                                               uint32_t slot, uint32_t part, ItemRecord& record) const {
    if (lane_ < 8) {
      const uint32_t changed = lane_ == 3 ? run_.begin : slot;
      reinterpret_cast<uint32_t*>(&record.item)[lane_] = lane_ == 3 || lane_ == 7 ? changed : word_;
    }
    const uint8_t* const rows = args_.plan + header().row_indices;
    const uint8_t* const positions = args_.plan + header().q_pos;
    if (lane_ < 4) {
      ptx::cp_async_16(ptx::smem_address(&record.block_row) + 16 * lane_,
                       reinterpret_cast<const uint8_t*>(from) + 16 * lane_);
    } else if (!kDrafts && lane_ == 6) {
      ptx::cp_async_4(ptx::smem_address(&record.rows[0]), rows + row * sizeof(uint32_t));
    } else if (!kDrafts && lane_ == 7) {
      ptx::cp_async_4(ptx::smem_address(&record.positions[0]), positions + row * sizeof(uint32_t));
    } else if (lane_ == 8) {
      record.head = run_.head;
      record.kv_len = static_cast<int32_t>(run_.end);  // of the run, as it is now
      record.part = part;
    }
    if constexpr (kDrafts) {
      const uint32_t token = lane_ % kRecordTokens;
      if (token >= row_count) return;
      const uint64_t at = (row + token) * sizeof(uint32_t);
      if (lane_ < kRecordTokens) {
        ptx::cp_async_4(ptx::smem_address(&record.rows[token]), rows + at);
      } else {
        ptx::cp_async_4(ptx::smem_address(&record.positions[token]), positions + at);
      }
    }
  }

  // An item that sees nothing has one slot too, with nothing in it.
  __device__ __forceinline__ void load_slot() {
    const bool empty = run_.end <= run_.begin;
#if FOVEA_LOADER == 0
    const uint32_t full = ptx::smem_address(&shared_.full[team_][slot_]);
    if (lane_ == 0 && brings_keys_) {
      if (empty) {
        ptx::mbarrier_arrive(full);
      } else {
        const uint32_t left = (run_.end - token_ + kTokens - 1) / kTokens;
        ptx::mbarrier_arrive_expect(full, min(left, static_cast<uint32_t>(kSlotSlices)) * 2 * kTile);
      }
    }
#endif
    if constexpr (PageCopy::kFits) {
      if (!empty) load_pages();
      token_ += kSlotTokens;
    } else {
#pragma unroll
      for (uint32_t s = 0; s < kSlotSlices; ++s) {
        if (!empty && (s == 0 || token_ < run_.end)) {
          const uint32_t to = ptx::smem_address(shared_.teams[team_].ring[slot_][s][0]);
          if constexpr (kWholeSlices) {
            load_from_page(to, s);
            next_slice();
          } else {
            load_rows(to, s);
          }
        }
        token_ += kTokens;
      }
    }
  }

  // All slices of the slot at once, each in a page of its own or in the same one.
  __device__ __forceinline__ void load_pages() {
    const uint32_t entry_tokens = static_cast<uint32_t>(args_.pool.entry_tokens);
    const bool second = lane_ >= PageCopy::kLanes;
    pages_.move_to(page_, lane_);
    const bool next_page = second && in_page_ + kTokens == entry_tokens;
    int32_t page = pages_.get(page_ + (next_page ? 1 : 0));
    uint32_t in_page = next_page ? 0 : in_page_ + (second ? kTokens : 0);
    find_page(args_.pool, page, in_page);
    if (!second || token_ + kTokens < run_.end) {
      uint32_t* const scales = &shared_.scales[kTokenScales ? team_ : 0][kTokenScales ? slot_ : 0][0][0];
      copy_.copy(args_.pool, static_cast<uint32_t>(page), in_page,
                 ptx::smem_address(shared_.teams[team_].ring[slot_][0][0]), ptx::smem_address(scales), lane_,
                 brings_keys_, brings_values_);
    }
#pragma unroll
    for (int s = 0; s < kSlotSlices; ++s) next_slice();
  }

  // Page of the slice behind, and where it begins there.
  __device__ __forceinline__ void next_slice() {
    in_page_ += kTokens;
    if (in_page_ != static_cast<uint32_t>(args_.pool.entry_tokens)) return;
    in_page_ = 0;
    ++page_;
  }

  // All of the slice lies in one page.
  __device__ __forceinline__ void load_from_page(uint32_t to, uint32_t slice) {
    pages_.move_to(page_, lane_);
    int32_t page = pages_.get(page_);
    int32_t in_page = static_cast<int32_t>(in_page_);
    find_page(args_.pool, page, in_page);
#if FOVEA_LOADER == 0
    if (lane_ == 0 && brings_keys_) {
      const uint32_t full = ptx::smem_address(&shared_.full[team_][slot_]);
      ptx::tma_load_box(to, k_map_, full, in_page, static_cast<int32_t>(run_.head), page);
      ptx::tma_load_box(to + kTile, v_map_, full, in_page, static_cast<int32_t>(run_.head), page);
    }
#else
    const abi::KvPoolView& pool = args_.pool;
    const uint64_t first = pool_row(pool, run_.head, page, in_page);
    const uint64_t row_bytes = static_cast<uint64_t>(pool.token_stride) * kElementBits / 8;
    copy_rows(to, [&](uint32_t token) { return first + token * row_bytes; });
#endif
    if constexpr (kTokenScales) {
      copy_scales(slice, scales_of_lane() + pool_scale(args_.pool, run_.head, page, in_page + (lane_ & 15)));
    }
  }

  __device__ __forceinline__ void load_rows(uint32_t to, uint32_t slice) {
    rows_.move_to(args_, run_, token_, lane_);
    const uint32_t first = token_ - rows_.first;
    copy_rows(to, [&](uint32_t token) { return __shfl_sync(~0u, rows_.current.row, first + token); });
    if constexpr (kTokenScales) {
      copy_scales(slice, scales_of_lane() + __shfl_sync(~0u, rows_.current.scale, first + (lane_ & 15)));
    }
  }

  // row(token): byte offset in the pool of a token of the slice.
  template <class F>
  __device__ __forceinline__ void copy_rows(uint32_t to, const F& row) {
    const auto* const k = static_cast<const uint8_t*>(args_.pool.k);
    const auto* const v = static_cast<const uint8_t*>(args_.pool.v);
    constexpr uint32_t kChunks = kRowBytes / 16;
#pragma unroll
    for (uint32_t first = 0; first < kTokens * kChunks; first += 32) {
      const uint32_t i = first + lane_;
      const uint32_t token = i / kChunks % kTokens;
      const uint64_t from = row(token) + i % kChunks * 16;
      if (kTokens * kChunks % 32 != 0 && i >= kTokens * kChunks) continue;
      const uint32_t at = to + SliceTile::chunk(token, i % kChunks);
      if (brings_keys_) ptx::cp_async_16(at, k + from);
      if (brings_values_) ptx::cp_async_16(at + kTile, v + from);
    }
  }

  // Those of K by 16 lanes, those of V by the others. from: that of the lane's token.
  __device__ __forceinline__ const abi::KvScale* scales_of_lane() const {
    return static_cast<const abi::KvScale*>(lane_ < 16 ? args_.pool.k_scale : args_.pool.v_scale);
  }
  __device__ __forceinline__ void copy_scales(uint32_t slice, const abi::KvScale* from) {
    if (!brings_keys_) return;
    uint32_t* const to = &shared_.scales[kTokenScales ? team_ : 0][kTokenScales ? slot_ : 0][0][0];
    ptx::cp_async_4(ptx::smem_address(to) + (slice * kTokens + (lane_ & 15)) * 8 + lane_ / 16 * 4, from);
  }

  const abi::AttentionArgs& args_;
  const abi::TensorMap* k_map_;
  const abi::TensorMap* v_map_;
  SharedMemory& shared_;
  uint32_t team_;
  bool brings_keys_, brings_values_;
  uint32_t lane_;
  uint32_t starts_;             // a word a lane, see own() and next()
  uint32_t pair_ = abi::kNone;  // of the next item; kNone: there is none
  uint32_t word_ = 0;           // lane i < 8 has word i of its tile's item
  uint32_t records_ = 0;        // written
  uint32_t slot_ = 0;
  uint32_t token_ = 0;  // first of the next slice
  Run run_{};
  // Whole slices: pages, the one of the next slice and where that begins in it; else rows.
  PageWindow pages_{};
  uint32_t page_ = 0;
  uint32_t in_page_ = 0;
  PageCopy copy_{};
  RowWindow rows_{};
};

}  // namespace fovea::attention::warp_per_worker
