// x from memory to shared memory, as products read it: panels of 64 numbers along k, rows of 128 bytes a token under
// the 128-byte swizzle. Within a slice of weights numbers stand in the order in which a lane's 16 bytes of weights are
// the words of the first operand.
#pragma once

#include "kernels/model/linear/batch_config.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::batch {

// The norm's weights into the L2, by a warp: constant, so before anything is waited for.
__device__ __forceinline__ void prefetch_norm(const abi::LinearArgs& args, uint32_t cta, uint32_t lane) {
  const abi::LinearSlices slices = slices_of(args.shape, cta);
  const auto* const norm = static_cast<const uint8_t*>(args.norm);
  for (uint32_t at = slices.begin * 64 + lane * 128; at < slices.end * 64; at += 32 * 128) ptx::prefetch_l2(norm + at);
}

class Tokens {
 public:
  static constexpr uint32_t kWarpBlocks = kBlocks > kWarps ? kBlocks / kWarps : 1;
  // Slices of a piece that a warp brings of one block.
  static constexpr uint32_t kBrought = kPieceSlices / kBringers;
  static_assert(kPieceSlices % kBringers == 0);
  // Pieces whose loads are under way together.
  static constexpr uint32_t kAtOnce = kWarpBlocks * kBrought < 16 ? 16 / (kWarpBlocks * kBrought) : 1;
  struct Piece {
    uint4 v[kWarpBlocks][kBrought];
  };

  __device__ __forceinline__ Tokens(const abi::LinearArgs& args, SharedMemory& shared, abi::LinearSlices slices,
                                    uint32_t warp, uint32_t lane)
      : args_(args), shared_(shared), slices_(slices), lane_(lane) {
    block_ = warp % kBlocks;
    bringer_ = kBringers > 1 ? warp / kBlocks : 0;
  }

  // Past the first-level cache: an earlier kernel may have left what was there before.
  template <uint32_t kFrom = 0, uint32_t kTo = kBrought>
  __device__ __forceinline__ void load(uint32_t piece, Piece& p) const {
#pragma unroll
    for (uint32_t b = 0; b < kWarpBlocks; ++b) {
      const uint32_t token = 8 * (block_ + b * kWarps) + lane_ / 4;
      const auto* const from = static_cast<const uint16_t*>(args_.x) + token * args_.x_stride;
#pragma unroll
      for (uint32_t i = kFrom; i < kTo; ++i) {
        const uint32_t s = slice_of(piece, i);
        p.v[b][i] = make_uint4(0, 0, 0, 0);
        if (token < args_.tokens && s < slices_.end) {
          p.v[b][i] = __ldcg(reinterpret_cast<const uint4*>(from + number_of(s)));
        }
      }
    }
  }

  // Multiplies by the norm's weights and adds to the sums of squares.
  __device__ __forceinline__ void norm(uint32_t piece, Piece& p) {
#pragma unroll
    for (uint32_t i = 0; i < kBrought; ++i) {
      const uint32_t s = slice_of(piece, i);
      uint4 w = make_uint4(0, 0, 0, 0);
      if (s < slices_.end) {
        w = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args_.norm) + number_of(s)));
      }
#pragma unroll
      for (uint32_t b = 0; b < kWarpBlocks; ++b) {
        uint4& v = p.v[b][i];
        one(v.x, w.x, b);
        one(v.y, w.y, b);
        one(v.z, w.z, b);
        one(v.w, w.w, b);
      }
    }
  }

  // To place `place` of the pieces that are kept. Whoever multiplies must be told by a barrier.
  template <uint32_t kFrom = 0, uint32_t kTo = kBrought>
  __device__ __forceinline__ void store(uint32_t place, const Piece& p) const {
#pragma unroll
    for (uint32_t b = 0; b < kWarpBlocks; ++b) {
      const uint32_t token = 8 * (block_ + b * kWarps) + lane_ / 4;
#pragma unroll
      for (uint32_t i = kFrom; i < kTo; ++i) {
        const uint32_t s = i * kBringers + bringer_;  // of the piece
        uint8_t* const row = shared_.x[place * kPiecePanels + s / 2] + token * 128 + lane_ % 4 * 4;
        const auto put = [&](uint32_t chunk, uint32_t word) {
          *reinterpret_cast<uint32_t*>(row + ((chunk ^ token % 8) << 4)) = word;
        };
        const uint4& v = p.v[b][i];
        put(s % 2 * 4, v.x);
        put(s % 2 * 4 + 1, v.y);
        put(s % 2 * 4 + 2, v.z);
        put(s % 2 * 4 + 3, v.w);
      }
    }
  }

  // Leaves the sums of squares to the CTAs that finish the tokens.
  __device__ __forceinline__ void give_squares(uint32_t cta) {
#pragma unroll
    for (uint32_t b = 0; b < kWarpBlocks; ++b) {
      squares_[b] += __shfl_xor_sync(~0u, squares_[b], 1);
      squares_[b] += __shfl_xor_sync(~0u, squares_[b], 2);
      const uint32_t block = block_ + b * kWarps;
      const uint32_t at = (kSharers > 1 ? 0 : block / kSplit * 8) + lane_ / 4;
      const uint32_t to = ptx::smem_address(&shared_.squares[cta * kBringers + bringer_][at]);
      const uint32_t there = ptx::smem_address(&shared_.squares_there);
      for (uint32_t sharer = lane_ % 4; sharer < kSharers; sharer += 4) {
        const uint32_t other = kSharers > 1 ? block + kBlocks * sharer : block % kSplit;
        ptx::store_async_4(ptx::address_in(to, other), squares_[b], ptx::address_in(there, other));
      }
    }
  }

 private:
  __device__ __forceinline__ uint32_t slice_of(uint32_t piece, uint32_t i) const {
    return slices_.begin + piece * kPieceSlices + i * kBringers + bringer_;
  }
  __device__ __forceinline__ uint32_t number_of(uint32_t s) const {
    return s * abi::kLinearSlice + lane_ % 4 * (abi::kLinearSlice / 4);
  }
  __device__ __forceinline__ void one(uint32_t& word, uint32_t w, uint32_t b) {
    const float low = ptx::unpack_low<kBf16>(word), high = ptx::unpack_high<kBf16>(word);
    squares_[b] = fmaf(low, low, fmaf(high, high, squares_[b]));
    word = ptx::multiply_add_bf16(word, w, args_.norm_plus_one != 0 ? word : 0u);
  }

  const abi::LinearArgs& args_;
  SharedMemory& shared_;
  abi::LinearSlices slices_;
  uint32_t lane_, block_, bringer_;
  float squares_[kWarpBlocks] = {};
};

// What sums of token `at` of those that the CTA finishes are multiplied by.
__device__ __forceinline__ float norm_factor(const abi::LinearArgs& args, const SharedMemory& shared, uint32_t at) {
  ptx::wait_cluster(ptx::smem_address(&shared.squares_there), 0);
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t part = 0; part < kSplit * kBringers; ++part) squares += shared.squares[part][at];
  return rsqrtf(squares / static_cast<float>(args.shape.k) + args.norm_eps);
}

}  // namespace fovea::batch
