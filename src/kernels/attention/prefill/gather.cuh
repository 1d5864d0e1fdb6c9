// K and V row by row, where pages are too small for boxes of TMA: a warp for each brings the rows of a tile
// by cp.async, 128 bytes by 8 lanes. Each lane finds some of the rows, whose page entries are on their way a tile
// ahead, and all read from shared memory where they are. Used by convert.cuh.
#pragma once

#include "kernels/attention/prefill/records.cuh"

namespace fovea::attention::prefill {

inline constexpr uint32_t kLaneRows = kBlockTokens / 32;           // that a lane finds
inline constexpr uint32_t kCopyLanes = 8;                          // copy 128 bytes of a row
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
static_assert(kCopyRows % 4 == 0);

// K or V of all items.
class TileLoader {
 public:
  __device__ __forceinline__ TileLoader(const abi::AttentionArgs& args, Memory& shared, uint32_t loader, uint32_t lane)
      : args_(args), shared_(shared), loader_(loader), lane_(lane) {}

  __device__ __forceinline__ void run() {
    for (uint32_t n = 0; next_record(shared_, n); ++n) {
      open(shared_.records[n % kRecords]);
      for (uint32_t j = tiles_.count; j-- > 0; ++use_) {
        bring(j);
        // Until it has landed: as a rule the next slot is not free before that, and who is to empty it may wait for
        // this.
        ptx::cp_async_wait<0>();
        // Products read through another proxy than copies of threads write: a fence by each thread that copied.
        ptx::fence_before_async_copies();
        ptx::mbarrier_arrive(ptx::smem_address(&ring().full[use_ % kKvSlots]));
      }
      end_loads(shared_, loader_, n, lane_);
    }
  }

 private:
  __device__ __forceinline__ TileBarriers<kKvSlots>& ring() const {
    return loader_ != 0 ? shared_.v_ring : shared_.k_ring;
  }
  __device__ __forceinline__ void open(const ItemRecord& record) {
    run_ = run_of(args_, record);
    tiles_ = Tiles::of(run_);
    if (tiles_.count != 0) ask(tiles_.count - 1);
  }

  // Page entries of tile j.
  __device__ __forceinline__ void ask(uint32_t j) {
    const uint32_t entry_tokens = static_cast<uint32_t>(args_.pool.entry_tokens);
    const TileList list =
        TileList::of(args_.page_entries + run_.list_begin, tiles_.base + j * kBlockTokens, entry_tokens);
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) next_[i].ask(list, run_, i * 32 + lane_, entry_tokens);
  }

  // Copies tile j to its slot when that is free.
  __device__ __forceinline__ void bring(uint32_t j) {
    const abi::KvPoolView& pool = args_.pool;
    uint64_t(&offsets)[kBlockTokens] = shared_.row_offsets[loader_];
    __syncwarp();  // those of the tile before are read
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const Place place = place_of(args_, next_[i].entry, next_[i].token);
      offsets[offset_place(i * 32 + lane_)] = bytes_of(place.page * pool.page_stride + place.token * pool.token_stride);
    }
    if (j != 0) ask(j - 1);
    const RingSlot<kKvSlots> at(use_);
    ptx::mbarrier_wait(ptx::smem_address(&ring().empty[at.index]), at.parity ^ 1);
    __syncwarp();
    const auto* const from = static_cast<const uint8_t*>(loader_ != 0 ? pool.v : pool.k);
    uint8_t* const slot = (loader_ != 0 ? shared_.v : shared_.k)[at.index];
    gather_rows(ptx::smem_address(slot), from + bytes_of(run_.head * pool.head_stride), offsets, lane_);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ static uint64_t bytes_of(long long elements) {
    return static_cast<uint64_t>(elements) * (kElementBits / 8);
  }

  const abi::AttentionArgs& args_;
  Memory& shared_;
  const uint32_t loader_, lane_;
  uint32_t use_ = 0;  // tiles brought
  Run run_{};
  Tiles tiles_{};
  TokenEntry next_[kLaneRows];  // of the next tile
};

}  // namespace fovea::attention::prefill
