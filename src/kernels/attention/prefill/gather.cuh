// K and V row by row, where pages are too small for boxes of TMA, or to be converted: a warp for each brings the rows
// of a tile by cp.async. Each lane finds some of the rows, whose page entries are on their way a tile ahead, and all
// read from shared memory where they are. Used by loader.cuh.
#pragma once

#include "kernels/attention/prefill/records.cuh"

namespace fovea::attention::prefill {

inline constexpr uint32_t kLaneRows = kBlockTokens / 32;           // that a lane finds
inline constexpr uint32_t kCopyLanes = 8;                          // copy 128 bytes of a row of 16-bit elements
inline constexpr uint32_t kCopyGroups = 32 / kCopyLanes;           // every so manieth row each
inline constexpr uint32_t kCopyRows = kBlockTokens / kCopyGroups;  // that a group copies

// Where the offset of a row stands: those of a group of lanes are neighbours.
__device__ __forceinline__ uint32_t offset_place(uint32_t row) {
  return row % kCopyGroups * kCopyRows + row / kCopyGroups;
}

// Where page entries of a run are, seen from a tile.
struct TileList {
  const int32_t* entries;  // from the one that has the tile's first token on
  uint32_t first;          // token that it begins with
  uint32_t tile_token;

  __device__ __forceinline__ static TileList of(const int32_t* list, uint32_t tile_token, uint32_t entry_tokens) {
    if (entry_tokens == 1) return {list, 0, tile_token};
    const uint32_t nth = tile_token / entry_tokens;
    return {list + nth, nth * entry_tokens, tile_token};
  }
};

// The page entry of a token, and the token in it. Tokens outside of the run are taken for its first or last one: what
// comes of them is hidden, and all tiles are copied alike.
struct TokenEntry {
  int32_t entry;
  uint32_t token;

  // nth: token of the tile.
  __device__ __forceinline__ void ask(const TileList& list, const Run& run, uint32_t nth, uint32_t entry_tokens) {
    const uint32_t at = min(max(list.tile_token + nth, run.begin), run.end - 1) - list.first;
    uint32_t number = at;
    // Exact: the half keeps quotients of numbers as small as an entry's and a tile's tokens off from integers.
    if (entry_tokens != 1) {
      number = static_cast<uint32_t>(__fdividef(static_cast<float>(at) + 0.5f, static_cast<float>(entry_tokens)));
    }
    entry = list.entries[number];
    token = at - number * entry_tokens;
  }
};

// Copies rows that begin `offsets` behind `from`; tile: where the first of them goes. An instruction keeps its
// addresses until it is under way: four rows have registers of their own, and the next four's offsets come meanwhile.
__device__ __forceinline__ void gather_rows(uint32_t tile, const uint8_t* from, const uint64_t* offsets,
                                            uint32_t lane) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t chunk = lane % kCopyLanes;
  const uint32_t group = lane / kCopyLanes % kCopyGroups;
  const uint32_t places = ptx::smem_address(offsets + group * kCopyRows);
  from += chunk * 16;
  // Swizzles of rows repeat with every other one.
  uint32_t to[2] = {tile + tile_offset(group, chunk, kKvPanelBytes),
                    tile + tile_offset(kCopyGroups + group, chunk, kKvPanelBytes) - kCopyGroups * 128};
  asm volatile("" : "+r"(to[0]), "+r"(to[1]));
  uint32_t words[2][kAtOnce / 2][4];
  const auto ask = [&](uint32_t first) {
#pragma unroll
    for (uint32_t e = 0; e < kAtOnce / 2; ++e) {
      ptx::load_shared_16(words[first / kAtOnce % 2][e], places + (first + 2 * e) * sizeof(uint64_t));
    }
  };
  ask(0);
#pragma unroll
  for (uint32_t first = 0; first < kCopyRows; first += kAtOnce) {
    const uint8_t* rows[kAtOnce];
#pragma unroll
    for (uint32_t e = 0; e < kAtOnce; ++e) {
      const uint32_t(&at)[4] = words[first / kAtOnce % 2][e / 2];
      rows[e] = from + (static_cast<uint64_t>(at[e % 2 * 2 + 1]) << 32 | at[e % 2 * 2]);
    }
    asm volatile("" ::"l"(rows[0]), "l"(rows[1]), "l"(rows[2]), "l"(rows[3]));
    if (first + kAtOnce < kCopyRows) ask(first + kAtOnce);
#pragma unroll
    for (uint32_t e = 0; e < kAtOnce; ++e) {
#pragma unroll
      for (uint32_t part = 0; part < kTilePanels; ++part) {
        if (kRowBytes % 128 != 0 && part * kCopyLanes + chunk >= kRowChunks) continue;
        ptx::cp_async_16(to[e % 2] + (first + e) * kCopyGroups * 128 + part * kKvPanelBytes, rows[e] + part * 128);
      }
    }
  }
}
static_assert(kConverts || kCopyRows % 4 == 0);

// The same of rows as they are stored, one behind the other.
__device__ __forceinline__ void copy_stored_rows(uint32_t to, const uint8_t* from, const uint64_t* offsets,
                                                 uint32_t lane) {
  constexpr uint32_t kChunks = kPoolRowBytes / 16;
  constexpr uint32_t kCopies = kBlockTokens * kChunks / 32;
  constexpr uint32_t kAtOnce = kLoadRegisters > 48 ? 8 : kHeadDim == 112 ? 2 : 4;
  constexpr int kUnrolled = kHeadDim == 112 ? 1 : 8;  // more of rows of 7 chunks would spill
  to += lane * 16;
#pragma unroll kUnrolled
  for (uint32_t first = 0; first < kCopies; first += kAtOnce) {
    uint64_t at[kAtOnce];  // all on their way before the first copy, behind which no load may move
#pragma unroll
    for (uint32_t e = 0; e < kAtOnce && first + e < kCopies; ++e) {
      if constexpr (32 % kChunks == 0) {
        at[e] = offsets[(first + e) * (32 / kChunks) + lane / kChunks] + lane % kChunks * 16;
      } else {
        const uint32_t nth = (first + e) * 32 + lane;
        at[e] = offsets[nth / kChunks] + nth % kChunks * 16;
      }
    }
#pragma unroll
    for (uint32_t e = 0; e < kAtOnce && first + e < kCopies; ++e) {
      ptx::cp_async_16(to + (first + e) * 512, from + at[e]);
    }
  }
}

// K or V of all items.
class TileLoader {
 public:
  __device__ __forceinline__ TileLoader(const abi::AttentionArgs& args, Memory& shared, uint32_t loader, uint32_t lane)
      : args_(args), shared_(shared), loader_(loader), lane_(lane) {}

  __device__ __forceinline__ void run() {
    for (uint32_t n = 0; next_record(shared_, n); ++n) {
      run_ = run_of(args_, shared_.records[n % kRecords]);
      tiles_ = Tiles::of(run_);
      if (tiles_.count != 0) ask(tiles_.count - 1);
      for (uint32_t j = tiles_.count; j-- > 0; ++use_) {
        find_rows();
        if (j != 0) ask(j - 1);
        bring();
      }
      end_loads(shared_, loader_, n, lane_);
    }
  }

  // Of pools that are converted: every other tile of both, as it is stored.
  __device__ __forceinline__ void run_stored() {
    for (uint32_t n = 0; next_record(shared_, n); ++n) {
      run_ = run_of(args_, shared_.records[n % kRecords]);
      tiles_ = Tiles::of(run_);
      uint32_t i = (use_ + loader_) % 2;
      if (i < tiles_.count) ask(tiles_.count - 1 - i);
#pragma unroll 1
      for (; i < tiles_.count; i += 2) {
        find_rows();
        if (i + 2 < tiles_.count) ask(tiles_.count - 3 - i);
        bring_stored(false, use_ + i);
        bring_stored(true, use_ + i);
      }
      use_ += tiles_.count;
      end_loads(shared_, loader_, n, lane_);
    }
  }

 private:
  // Page entries of tile j.
  __device__ __forceinline__ void ask(uint32_t j) {
    const uint32_t entry_tokens = static_cast<uint32_t>(args_.pool.entry_tokens);
    const TileList list =
        TileList::of(args_.page_entries + run_.list_begin, tiles_.base + j * kBlockTokens, entry_tokens);
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) next_[i].ask(list, run_, i * 32 + lane_, entry_tokens);
  }
  // Where the rows of the tile asked for begin, and the scales of their tokens.
  __device__ __forceinline__ void find_rows() {
    const abi::KvPoolView& pool = args_.pool;
    __syncwarp();  // those of the tile before are read
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const Place place = place_of(args_, next_[i].entry, next_[i].token);
      const uint32_t row = i * 32 + lane_;
      shared_.row_offsets[loader_][kConverts ? row : offset_place(row)] =
          stored_bytes(place.page * pool.page_stride + place.token * pool.token_stride);
      if constexpr (kPoolScales) {
        scale_offsets_[i] = static_cast<uint64_t>(place.page * pool.scale_page_stride +
                                                  run_.head * pool.scale_head_stride + place.token);
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ const uint8_t* first_row(bool values) const {
    return static_cast<const uint8_t*>(values ? args_.pool.v : args_.pool.k) +
           stored_bytes(run_.head * args_.pool.head_stride);
  }

  // Copies the tile whose rows were found to its slot when that is free.
  __device__ __forceinline__ void bring() {
    TileBarriers<kKvSlots>& ring = loader_ != 0 ? shared_.v_ring : shared_.k_ring;
    const uint32_t slot = use_ % kKvSlots;
    wait_empty(ring, use_);
    __syncwarp();
    gather_rows(ptx::smem_address((loader_ != 0 ? shared_.v : shared_.k)[slot]), first_row(loader_ != 0),
                shared_.row_offsets[loader_], lane_);
    // Until it has landed: as a rule the next slot is not free before that, and the warps that empty it may wait for
    // this.
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    // Products read through another proxy than copies of threads write: a fence by each thread that copied.
    ptx::fence_before_async_copies();
    ptx::mbarrier_arrive(ptx::smem_address(&ring.full[slot]));
  }
  // The use-th tile as it is stored, without waiting for the copies: many tiles are on their way.
  __device__ __forceinline__ void bring_stored(bool values, uint32_t use) {
    TileBarriers<kRawSlots>& ring = shared_.raw_ring[values ? 1 : 0];
    const uint32_t slot = use % kRawSlots;
    wait_empty(ring, use);
    __syncwarp();
    copy_stored_rows(ptx::smem_address(shared_.raw[values ? 1 : 0][slot]), first_row(values),
                     shared_.row_offsets[loader_], lane_);
    if constexpr (kPoolScales) {
      const auto* const from = static_cast<const abi::KvScale*>(values ? args_.pool.v_scale : args_.pool.k_scale);
      const uint32_t to = ptx::smem_address(shared_.raw_scales[values ? 1 : 0][slot]);
#pragma unroll
      for (uint32_t i = 0; i < kLaneRows; ++i) ptx::cp_async_4(to + (i * 32 + lane_) * 4, from + scale_offsets_[i]);
    }
    ptx::mbarrier_arrive_after_copies(ptx::smem_address(&ring.full[slot]));
  }

  const abi::AttentionArgs& args_;
  Memory& shared_;
  const uint32_t loader_, lane_;
  uint32_t use_ = 0;  // tiles before
  Run run_{};
  Tiles tiles_{};
  TokenEntry next_[kLaneRows];  // of the next tile
  uint64_t scale_offsets_[kPoolScales ? kLaneRows : 1];
};

}  // namespace fovea::attention::prefill
