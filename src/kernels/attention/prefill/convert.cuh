// K and V of pools that products cannot read as they are stored: two warps each take tiles that a loader brought
// (gather.cuh) and write them as halves where products find them. Used by kernel.cuh.
#pragma once

#include "kernels/attention/prefill/records.cuh"
#include "kernels/attention/prefill/stored.cuh"

namespace fovea::attention::prefill {

// One of the warps: its part of the rows of each tile of K, or of V, of all items.
class TileConverter {
 public:
  // converter: K's first, then V's.
  __device__ __forceinline__ TileConverter(Memory& shared, uint32_t converter, uint32_t lane)
      : shared_(shared), values_(converter / kTileConverters), half_(converter % kTileConverters), lane_(lane) {}

  __device__ __forceinline__ void run(const abi::AttentionArgs& args) {
    for (uint32_t n = 0; next_record(shared_, n); ++n) {
      const uint32_t count = Tiles::of(run_of(args, shared_.records[n % kRecords])).count;
      for (uint32_t j = 0; j < count; ++j, ++use_) convert_tile();
      __syncwarp();
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared_.record_empty[n % kRecords]));
    }
  }

 private:
  static constexpr uint32_t kRows = kBlockTokens / kTileConverters;
  static constexpr uint32_t kChunks = kPoolRowBytes / 16;  // of a row as it is stored
  static constexpr uint32_t kCopies = kRows * kChunks / 32;
  static constexpr uint32_t kParts = 16 / kPoolBits;  // chunks of halves that one of those becomes
  // Loads before the first store, behind which none may move.
  static constexpr uint32_t kAtOnce = kLoadRegisters > 48 ? 4 : kHeadDim == 112 ? 1 : kHeadDim == 128 ? 3 : 2;
  static_assert(!kConverts || (kRows * kChunks % 32 == 0 && kRows % 8 == 0));

  // Where the lane's chunk of copy i goes, behind those of the warp's rows: its first part.
  struct Target {
    uint32_t row, chunk;
    __device__ __forceinline__ static Target of(uint32_t i, uint32_t lane) {
      if constexpr (32 % kChunks == 0) return {i * (32 / kChunks) + lane / kChunks, lane % kChunks};
      const uint32_t nth = i * 32 + lane;
      return {nth / kChunks, nth % kChunks};
    }
    // Stores of eight lanes meet all banks if those of the next panel take their parts in another order: 0, or what
    // their numbers differ in.
    __device__ __forceinline__ uint32_t swapped() const { return chunk * kParts / 8 % 2 * (kParts / 2); }
    __device__ __forceinline__ uint32_t offset(uint32_t part) const {
      return tile_offset(row, chunk * kParts + (part ^ swapped()), kKvPanelBytes);
    }
  };

  __device__ __forceinline__ void convert_tile() {
    TileBarriers<kRawSlots>& from = shared_.raw_ring[values_];
    TileBarriers<kKvSlots>& to = values_ != 0 ? shared_.v_ring : shared_.k_ring;
    const uint32_t raw = use_ % kRawSlots, tile = use_ % kKvSlots;
    wait_full(from, use_);
    wait_empty(to, use_);
    __syncwarp();
    const uint32_t stored = ptx::smem_address(shared_.raw[values_][raw]) + half_ * (kRows * kPoolRowBytes) + lane_ * 16;
    const uint32_t scales = ptx::smem_address(shared_.raw_scales[values_][raw]) + half_ * kRows * 4;
    uint8_t* const slot = (values_ != 0 ? shared_.v : shared_.k)[tile] + half_ * (kRows * 128);
    // Of keys, which products take as they are stored.
    for (uint32_t row = lane_; kPoolScales && values_ == 0 && row < kRows; row += 32) {
      const uint32_t word = ptx::load_shared_4(scales + row * 4);
      shared_.key_scales[use_ % kScaleSlots][half_ * kRows + row] = {ptx::unpack_low<false>(word),
                                                                     ptx::unpack_high<false>(word)};
    }
#pragma unroll
    for (uint32_t first = 0; first < kCopies; first += kAtOnce) {
      uint32_t words[kAtOnce][4];
      uint32_t of_values[kAtOnce];
#pragma unroll
      for (uint32_t e = 0; e < kAtOnce && first + e < kCopies; ++e) {
        ptx::load_shared_16(words[e], stored + (first + e) * 512);
        of_values[e] = 0;
        if (kPoolScales && values_ != 0) {
          of_values[e] = ptx::load_shared_4(scales + Target::of(first + e, lane_).row * 4);
        }
      }
#pragma unroll
      for (uint32_t e = 0; e < kAtOnce && first + e < kCopies; ++e) {
        const Target target = Target::of(first + e, lane_);
        const bool swapped = target.swapped() != 0;
        uint32_t(&x)[4] = words[e];
        const uint32_t in_order[4] = {swapped ? x[2] : x[0], swapped ? x[3] : x[1], swapped ? x[0] : x[2],
                                      swapped ? x[1] : x[3]};
#pragma unroll
        for (uint32_t part = 0; part < kParts; ++part) {
          uint32_t halves[4];
          halves_of_part(in_order, part, halves);
          if (values_ != 0) scale_values(of_values[e], halves);
          *reinterpret_cast<uint4*>(slot + target.offset(part)) = uint4{halves[0], halves[1], halves[2], halves[3]};
        }
      }
    }
    // Products read through another proxy than threads write: a fence by each thread that wrote.
    ptx::fence_before_async_copies();
    __syncwarp();
    if (lane_ != 0) return;
    ptx::mbarrier_arrive(ptx::smem_address(&to.full[tile]));
    ptx::mbarrier_arrive(ptx::smem_address(&from.empty[raw]));
  }

  Memory& shared_;
  const uint32_t values_, half_, lane_;
  uint32_t use_ = 0;  // tiles converted
};

}  // namespace fovea::attention::prefill
