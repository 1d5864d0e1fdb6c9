// The stream of weights of a warp: its slices of k of the rows that the cluster takes, tile by tile, through a ring in
// shared memory that nobody else waits for.
#pragma once

#include "kernels/model/linear/config.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::linear {

using abi::LinearShape;

inline constexpr uint32_t kWeightBytes = 64 / kWeightSlice;

// Row i of the first tile of pairs [begin, ..).
__device__ __forceinline__ uint64_t row_of(const LinearShape& s, uint32_t begin, uint32_t i) {
  const uint64_t pair = begin + i / 2;
  return s.half == 1 ? 2 * pair + i % 2 : pair + i % 2 * static_cast<uint64_t>(s.half);
}
__device__ __forceinline__ const uint8_t* bytes_of(const LinearShape& s, uint64_t row, uint32_t slice) {
  return static_cast<const uint8_t*>(s.w) + row * s.k * kWeightBytes + slice * 64;
}

// A stage is copied in bulk, a row by each of 8 lanes, or by cp.async, 16 bytes of every row by each lane. Bulk copies
// read faster, but a warp issues them one after the other, some 45 clocks each: too long for tiles of e4m3 weights,
// which have half the bytes.
class WeightStream {
 public:
  // Starts copies of the first stages: weights never change, so no earlier kernel is waited for.
  __device__ __forceinline__ WeightStream(const LinearShape& s, SharedMemory& shared, abi::LinearPairs pairs,
                                          abi::LinearSlices slices, uint32_t warp, uint32_t lane)
      : pairs_left_(pairs.end - pairs.begin), count_(slices.end - slices.begin), lane_(lane) {
    ring_ = ptx::smem_address(shared.ring[warp]);
    full_ = ptx::smem_address(shared.full[warp]);
    tile_bytes_ = (s.half == 1 ? kTileRows : abi::kLinearTilePairs) * s.k * kWeightBytes;
    if constexpr (kBulk) {
      from_ = bytes_of(s, row_of(s, pairs.begin, lane % kTileRows), slices.begin);
      if (lane == 0) {
        for (uint32_t i = 0; i < kRing.stages; ++i) ptx::mbarrier_init(full_ + 8 * i, 1);
      }
      ptx::fence_mbarrier_init();
      __syncwarp();
    } else {
      from_ = bytes_of(s, row_of(s, pairs.begin, 0), slices.begin) + lane * 16;
      row_bytes_ = uint64_t{s.half} * s.k * kWeightBytes;
    }
    for (uint32_t i = 0; i < kRing.stages; ++i) copy_stage(i);
  }

  uint32_t count() const { return count_; }  // slices

  // The next pieces of all rows of the tile: begin() waits for them and says where the lane's 16 bytes of their first
  // slice are, slices 64 bytes apart; end() gives their place to the next copies.
  __device__ __forceinline__ uint32_t begin() const {
    if constexpr (kBulk) {
      ptx::mbarrier_wait(full_ + 8 * slot_, parity_);
    } else {
      ptx::cp_async_wait<kRing.stages - 1>();
      __syncwarp();
    }
    return ring_ + slot_ * kStageBytes + lane_ / 4 * kPieceBytes + lane_ % 4 * 16;
  }
  __device__ __forceinline__ void end() {
    __syncwarp();
    copy_stage(slot_);
    if (++slot_ == kRing.stages) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void copy_stage(uint32_t slot) {
    if (pairs_left_ != 0 && count_ != 0) {
      const uint32_t pairs = min(pairs_left_, abi::kLinearTilePairs), bytes = min(count_ - at_, kRing.slices) * 64;
      const uint32_t to = ring_ + slot * kStageBytes;
      if constexpr (kBulk) {
        copy_bulk(to, 2 * pairs, bytes, full_ + 8 * slot);
      } else if (lane_ * 16 < bytes) {
        copy_rows(to + lane_ * 16, pairs);
      }
      at_ += kRing.slices;
      if (at_ >= count_) {
        at_ = 0;
        pairs_left_ -= pairs;
        from_ += tile_bytes_;
      }
    }
    if constexpr (!kBulk) ptx::cp_async_commit();  // none too, so that groups are counted as stages are
  }
  // Lane i copies row i of the tile.
  __device__ __forceinline__ void copy_bulk(uint32_t to, uint32_t rows, uint32_t bytes, uint32_t full) {
    if (lane_ == 0) ptx::mbarrier_arrive_expect(full, rows * bytes);
    __syncwarp();
    if (lane_ < rows) ptx::bulk_load(to + lane_ * kPieceBytes, from_ + at_ * 64, bytes, full);
  }
  __device__ __forceinline__ void copy_rows(uint32_t to, uint32_t pairs) {
    const uint8_t* from = from_ + at_ * 64;
#pragma unroll
    for (uint32_t i = 0; i < abi::kLinearTilePairs; ++i) {
      if (i >= pairs) continue;
      ptx::cp_async_16(to + 2 * i * kPieceBytes, from);
      ptx::cp_async_16(to + (2 * i + 1) * kPieceBytes, from + row_bytes_);
      from += tile_bytes_ / abi::kLinearTilePairs;
    }
  }

  const uint8_t* from_;  // the lane's row, or its 16 bytes of the first row, of the next tile to copy
  uint32_t tile_bytes_;
  uint64_t row_bytes_ = 0;  // from one row of a pair to the other
  uint32_t pairs_left_;     // not copied yet
  uint32_t at_ = 0;         // slice of the tile that is copied next
  uint32_t count_;
  uint32_t ring_, full_;
  uint32_t slot_ = 0, parity_ = 0;
  uint32_t lane_;
};

}  // namespace fovea::linear
