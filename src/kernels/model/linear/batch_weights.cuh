// Streams of weights: producer warps copy, each for one warp of every warpgroup, so that the warps that multiply issue
// no copies.
#pragma once

#include "kernels/model/linear/batch_config.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace fovea::batch {

__device__ __forceinline__ void init_rings(SharedMemory& shared, uint32_t producer) {
  for (uint32_t warp = producer; warp < kWarps; warp += kProducers) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::smem_address(&shared.full[warp][i]), 1);
      ptx::mbarrier_init(ptx::smem_address(&shared.empty[warp][i]), 1);
    }
  }
  ptx::fence_mbarrier_init();
}

// All copies of a producer; lane i copies row i of a warp's 16. Weights never change, so no earlier kernel is waited
// for.
__device__ __forceinline__ void produce(const abi::LinearShape& s, SharedMemory& shared, uint32_t cta, uint32_t cluster,
                                        uint32_t producer, uint32_t lane) {
  const abi::LinearSlices slices = slices_of(s, cta);
  const uint32_t pieces = pieces_of(slices);
  const auto* const k = static_cast<const uint8_t*>(s.w) + slices.begin * 64;
  const Tiles groups[kGroups] = {Tiles(s, cluster * kGroups), Tiles(s, cluster * kGroups + 1)};
  const uint32_t tiles = groups[0].count;
  uint32_t use = 0;  // of the rings
  for (uint32_t round = 0; round < tiles; round += kHeld) {
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      const uint32_t bytes = min(kPieceSlices, slices.end - slices.begin - piece * kPieceSlices) * 64;
      for (uint32_t tile = round; tile < min(round + kHeld, tiles); ++tile, ++use) {
        const uint32_t slot = use % kStages, parity = (use / kStages & 1) ^ 1;
#pragma unroll
        for (uint32_t g = 0; g < kGroups; ++g) {
          const uint32_t first = groups[g].first(tile, producer), rows = 2 * groups[g].pairs(tile, producer);
          const uint32_t warp = producer + 4 * g, full = ptx::smem_address(&shared.full[warp][slot]);
          ptx::mbarrier_wait(ptx::smem_address(&shared.empty[warp][slot]), parity);
          if (lane == 0) ptx::mbarrier_arrive_expect(full, rows * bytes);
          __syncwarp();
          if (lane < rows) {
            const uint64_t pair = first + lane / 2;
            const uint64_t row = s.half == 1 ? 2 * pair + lane % 2 : pair + lane % 2 * static_cast<uint64_t>(s.half);
            ptx::bulk_load(ptx::smem_address(shared.ring[warp][slot]) + lane * kPieceBytes,
                           k + row * s.k * 2 + piece * kPieceBytes, bytes, full);
          }
        }
      }
    }
  }
}

// What a warp that multiplies sees of its ring.
class Ring {
 public:
  __device__ __forceinline__ Ring(SharedMemory& shared, uint32_t warp, uint32_t lane) : lane_(lane) {
    at_ = ptx::smem_address(shared.ring[warp]) + lane / 4 * 2 * kPieceBytes + lane % 4 * 16;
    full_ = ptx::smem_address(shared.full[warp]);
    empty_ = ptx::smem_address(shared.empty[warp]);
  }
  // Waits for the next piece; where the lane's 16 bytes of its first slice of the first row of a pair are. Slices are
  // 64 bytes apart, the rows of a pair kPieceBytes.
  __device__ __forceinline__ uint32_t begin() const {
    ptx::mbarrier_wait(full_ + 8 * slot_, parity_);
    return at_ + slot_ * kStageBytes;
  }
  __device__ __forceinline__ void end() {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(empty_ + 8 * slot_);
    if (++slot_ == kStages) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint32_t at_, full_, empty_, lane_;
  uint32_t slot_ = 0, parity_ = 0;
};

}  // namespace fovea::batch
