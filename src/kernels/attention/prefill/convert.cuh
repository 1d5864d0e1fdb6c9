// K and V of pools that products cannot read as they are stored: a warp for each brings rows of fp8 by cp.async into
// memory of its own, and writes them as halves where products find them. What is on its way is counted in bytes: half a
// tile at any time, the next tile's behind this one's. Used by loader.cuh.
#pragma once

#include "kernels/attention/prefill/gather.cuh"

namespace fovea::attention::prefill {

inline constexpr uint32_t kPieces = kPoolRowBytes / 16;             // of a row
inline constexpr uint32_t kPieceRows = 32 / kPieces;                // whole rows that a copy of the warp brings
inline constexpr uint32_t kTileCopies = kBlockTokens / kPieceRows;  // of the warp, a tile
inline constexpr uint32_t kAtOnce = 4;                              // copies that are one group
static_assert(!kConverts || (kTileCopies % kRawCopies == 0 && kRawCopies % kAtOnce == 0));

// K or V of all items.
class ConvertingLoader {
 public:
  __device__ __forceinline__ ConvertingLoader(const abi::AttentionArgs& args, Memory& shared, uint32_t loader,
                                              uint32_t lane)
      : args_(args),
        shared_(shared),
        loader_(loader),
        lane_(lane),
        // Four lanes have a row's pieces in one panel, four others those of the next row: their swizzles differ, so
        // that stores of eight lanes meet all banks.
        row_(lane / 4 % 2 + lane / 8 / kTilePanels * 2),
        chunk_(lane / 8 % kTilePanels * 8 + lane % 4 * 2) {}

  __device__ __forceinline__ void run() {
    for (uint32_t n = 0; next_record(shared_, n); ++n) {
      run_ = run_of(args_, shared_.records[n % kRecords]);
      tiles_ = Tiles::of(run_);
      if (tiles_.count != 0) {
        ask(tiles_.count - 1);
        find_rows();
        if (tiles_.count > 1) ask(tiles_.count - 2);
#pragma unroll 1
        for (uint32_t first = 0; first < kRawCopies; first += kAtOnce) copy(first, first);
      }
      for (uint32_t j = tiles_.count; j-- > 0; ++use_) {
        bring(j);
        // Products read through another proxy than threads write: a fence by each thread that wrote.
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

  // Page entries of tile j.
  __device__ __forceinline__ void ask(uint32_t j) {
    const uint32_t entry_tokens = static_cast<uint32_t>(args_.pool.entry_tokens);
    const TileList list =
        TileList::of(args_.page_entries + run_.list_begin, tiles_.base + j * kBlockTokens, entry_tokens);
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) next_[i].ask(list, run_, i * 32 + lane_, entry_tokens);
  }
  // Where the rows of the tile asked for begin. All rows found before are on their way.
  __device__ __forceinline__ void find_rows() {
    const abi::KvPoolView& pool = args_.pool;
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const Place place = place_of(args_, next_[i].entry, next_[i].token);
      shared_.row_offsets[loader_][i * 32 + lane_] =
          static_cast<uint64_t>(place.page * pool.page_stride + place.token * pool.token_stride);
    }
    __syncwarp();
  }

  // Copies first .. of the rows found become one group on its way to raw copies `to` ..
  __device__ __forceinline__ void copy(uint32_t first, uint32_t to) {
    const auto* const from = static_cast<const uint8_t*>(loader_ != 0 ? args_.pool.v : args_.pool.k) +
                             run_.head * args_.pool.head_stride + chunk_ * 8;
    const uint64_t* const offsets = &shared_.row_offsets[loader_][first * kPieceRows + row_];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      ptx::cp_async_16(raw(to + i), from + offsets[i * kPieceRows]);
    }
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ uint32_t raw(uint32_t copy) const {
    return ptx::smem_address(shared_.raw[loader_]) + copy * 512 + lane_ * 16;
  }

  // Copies first .. of a tile at `slot`, which raw copies `from` .. are.
  __device__ __forceinline__ void convert(uint8_t* slot, uint32_t first, uint32_t from) const {
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      uint32_t bytes[4];
      ptx::load_shared_16(bytes, raw(from + i));
      const uint32_t row = (first + i) * kPieceRows + row_;
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        uint4 to;
        ptx::halves_of_e4m3(bytes[2 * half], to.x, to.y);
        ptx::halves_of_e4m3(bytes[2 * half + 1], to.z, to.w);
        *reinterpret_cast<uint4*>(slot + tile_offset(row, chunk_ + half, kKvPanelBytes)) = to;
      }
    }
  }

  // Tile j to its slot when that is free; the first copies of the next one are on their way then.
  __device__ __forceinline__ void bring(uint32_t j) {
    const RingSlot<kKvSlots> at(use_);
    ptx::mbarrier_wait(ptx::smem_address(&ring().empty[at.index]), at.parity ^ 1);
    __syncwarp();
    uint8_t* const slot = (loader_ != 0 ? shared_.v : shared_.k)[at.index];
#pragma unroll 1
    for (uint32_t n = 0; n < kTileCopies; n += kAtOnce) {
      if (n == kTileCopies - kRawCopies && j != 0) {
        find_rows();
        if (j > 1) ask(j - 2);
      }
      ptx::cp_async_wait<kRawCopies / kAtOnce - 1>();
      convert(slot, n, n % kRawCopies);
      if (n + kRawCopies < kTileCopies) {
        copy(n + kRawCopies, n % kRawCopies);
      } else if (j != 0) {
        copy(n + kRawCopies - kTileCopies, n % kRawCopies);
      } else {
        ptx::cp_async_commit();  // none: groups are counted
      }
    }
  }

  const abi::AttentionArgs& args_;
  Memory& shared_;
  const uint32_t loader_, lane_;
  const uint32_t row_, chunk_;  // of a copy's rows, and of the row as halves
  uint32_t use_ = 0;            // tiles brought
  Run run_{};
  Tiles tiles_{};
  TokenEntry next_[kLaneRows];  // of the next tile
};

}  // namespace fovea::attention::prefill
