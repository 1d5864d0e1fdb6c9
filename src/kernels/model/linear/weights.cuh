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

// Row i of tile `tile` of pairs [begin, ..).
__device__ __forceinline__ uint64_t row_of(const LinearShape& s, uint32_t begin, uint32_t tile, uint32_t i) {
  const uint64_t pair = begin + tile * abi::kLinearTilePairs + i / 2;
  return s.half == 1 ? 2 * pair + i % 2 : pair + i % 2 * static_cast<uint64_t>(s.half);
}
__device__ __forceinline__ const uint8_t* bytes_of(const LinearShape& s, uint64_t row, uint32_t slice) {
  return static_cast<const uint8_t*>(s.w) + row * s.k * kWeightBytes + slice * 64;
}

class WeightStream {
 public:
  // Starts copies of the first stages: weights never change, so no earlier kernel is waited for.
  __device__ __forceinline__ WeightStream(const LinearShape& s, SharedMemory& shared, abi::LinearPairs pairs,
                                          abi::LinearSlices slices, uint32_t warp, uint32_t lane)
      : pairs_left_(pairs.end - pairs.begin), count_(slices.end - slices.begin), lane_(lane) {
    ring_ = ptx::smem_address(shared.ring[warp]);
    full_ = ptx::smem_address(shared.full[warp]);
    from_ = bytes_of(s, row_of(s, pairs.begin, 0, lane % kTileRows), slices.begin);
    tile_bytes_ = (s.half == 1 ? kTileRows : abi::kLinearTilePairs) * s.k * kWeightBytes;
    if (lane == 0) {
      for (uint32_t i = 0; i < kRing.stages; ++i) ptx::mbarrier_init(full_ + 8 * i, 1);
    }
    ptx::fence_mbarrier_init();
    __syncwarp();
    for (uint32_t i = 0; i < kRing.stages; ++i) copy_stage(i);
  }

  uint32_t count() const { return count_; }  // slices

  // The next pieces of all rows of the tile: begin() waits for them and says where the lane's 16 bytes of their first
  // slice are, slices 64 bytes apart; end() gives their place to the next copies.
  __device__ __forceinline__ uint32_t begin() const {
    ptx::mbarrier_wait(full_ + 8 * slot_, parity_);
    uint32_t slot = slot_;
    if constexpr (kRowStages == 2) {
      const uint32_t second = slot_ + 1 == kRing.stages ? 0 : slot_ + 1;
      ptx::mbarrier_wait(full_ + 8 * second, second == 0 ? parity_ ^ 1 : parity_);
      if (lane_ / 4 >= kRing.rows) slot = second;
    }
    return ring_ + slot * kStageBytes + lane_ / 4 % kRing.rows * kPieceBytes + lane_ % 4 * 16;
  }
  __device__ __forceinline__ void end() {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kRowStages; ++i) {
      copy_stage(slot_);
      if (++slot_ == kRing.stages) {
        slot_ = 0;
        parity_ ^= 1;
      }
    }
  }

 private:
  // Lane i copies row i of the tile.
  __device__ __forceinline__ void copy_stage(uint32_t slot) {
    if (pairs_left_ == 0 || count_ == 0) return;
    const uint32_t end = min(2 * min(pairs_left_, abi::kLinearTilePairs), row_ + kRing.rows);
    const uint32_t rows = end > row_ ? end - row_ : 0, bytes = min(count_ - at_, kRing.slices) * 64;
    if (lane_ == 0) ptx::mbarrier_arrive_expect(full_ + 8 * slot, rows * bytes);
    __syncwarp();
    if (lane_ >= row_ && lane_ < end) {
      ptx::bulk_load(ring_ + slot * kStageBytes + (lane_ - row_) * kPieceBytes, from_ + at_ * 64, bytes,
                     full_ + 8 * slot);
    }
    row_ = (row_ + kRing.rows) % kTileRows;
    if (row_ != 0) return;
    at_ += kRing.slices;
    if (at_ < count_) return;
    at_ = 0;
    pairs_left_ -= min(pairs_left_, abi::kLinearTilePairs);
    from_ += tile_bytes_;
  }

  const uint8_t* from_;  // lanes of a row: its next tile
  uint32_t tile_bytes_;
  uint32_t pairs_left_;  // not copied yet
  uint32_t at_ = 0;      // slice, and row of the tile, that are copied next
  uint32_t row_ = 0;
  uint32_t count_;
  uint32_t ring_, full_;
  uint32_t slot_ = 0, parity_ = 0;
  uint32_t lane_;
};

}  // namespace fovea::linear
