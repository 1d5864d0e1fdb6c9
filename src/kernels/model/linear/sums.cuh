// From the parts of a tile's sums, one a warp of the cluster, to y: added by one warp in the order of k, so that the
// bits of y depend on nothing but x and w, then what epilogue.cuh says.
#pragma once

#include "kernels/model/linear/epilogue.cuh"
#include "kernels/model/linear/tokens.cuh"

namespace fovea::linear {

// By which sums of e4m3 weights are too small: those are 2^-120 as large and x 2^100 where both are bf16.
inline constexpr float kShrunk = kBf16 ? 0x1p20f : 0x1p8f;

// The warp that adds up a tile's parts, and where they wait for it.
struct TilePlace {
  uint32_t cta;   // of the cluster
  uint32_t warp;  // of the CTA
  uint32_t slot, round;
  __device__ __forceinline__ explicit TilePlace(uint32_t tile)
      : cta(tile % kSplit), warp(tile / kSplit % kWarps), slot(tile / kSplit % kSlots), round(tile / kSplit / kSlots) {}
};

class Sums {
 public:
  __device__ __forceinline__ Sums(const abi::LinearArgs& args, SharedMemory& shared, abi::LinearPairs pairs,
                                  uint32_t cta, uint32_t warp, uint32_t lane)
      : args_(args), shared_(shared), pairs_(pairs), cta_(cta), warp_(warp), lane_(lane) {}

  // By one thread, before the CTAs of the cluster meet. Within a CTA warps arrive; from other CTAs numbers do.
  __device__ __forceinline__ static void init_barriers(SharedMemory& shared) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(ptx::smem_address(&shared.part_there[slot]), kSplit == 1 ? kWarps : 1);
      for (uint32_t cta = 0; cta < kSplit; ++cta) {
        ptx::mbarrier_init(ptx::smem_address(&shared.parts_read[cta][slot]), 1);
      }
    }
    if constexpr (kSplit > 1 && kNorm) ptx::mbarrier_init(ptx::smem_address(&shared.squares_there), 1);
    ptx::fence_mbarrier_init();
    if constexpr (kSplit > 1) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) await_parts(shared, slot);
      if constexpr (kNorm) {
        ptx::mbarrier_arrive_expect(ptx::smem_address(&shared.squares_there), sizeof shared.squares);
      }
    }
  }

  // Asks for what will be added to the tile's sums, where this warp adds them up; early, for memory is far.
  __device__ __forceinline__ void expect(uint32_t tile) {
    if (!is_mine(TilePlace(tile))) return;
    const uint32_t pair = pair_of(tile);
    if (args_.bias != nullptr && pair < pairs_.end) {
      const auto* const bias = static_cast<const uint16_t*>(args_.bias);
      bias_ = bias[kGated ? pair : 2 * pair] |
              static_cast<uint32_t>(bias[kGated ? pair + args_.shape.half : 2 * pair + 1]) << 16;
    }
    if constexpr (kFp8) {
      if (pair < pairs_.end) {
        scales_ = make_float2(args_.scales[kGated ? pair : 2 * pair] * kShrunk,
                              args_.scales[kGated ? pair + args_.shape.half : 2 * pair + 1] * kShrunk);
      }
    }
    if (kGated || args_.residual == nullptr) return;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const uint32_t token = token_of() + 8 * b;
      const auto* const from = static_cast<const uint16_t*>(args_.residual) + token * args_.y_stride + 2ull * pair;
      residual_[b] = token < args_.tokens && pair < pairs_.end ? __ldcg(reinterpret_cast<const uint32_t*>(from)) : 0;
    }
  }

  // This warp's part of a tile: sums[b] are those of row lane / 4 and tokens 2 (lane % 4).. of block b.
  __device__ __forceinline__ void give(uint32_t tile, const float2 (&sums)[kBlocks]) const {
    const TilePlace place(tile);
    const uint32_t part = cta_ * kWarps + warp_;
    if (place.round > 0) wait(&shared_.parts_read[place.cta][place.slot], place.round - 1);
    if constexpr (kSplit == 1) {
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) shared_.parts[place.slot][part][b][lane_] = sums[b];
      __syncwarp();
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared_.part_there[place.slot]));
    } else {
      const uint32_t there = ptx::address_in(ptx::smem_address(&shared_.part_there[place.slot]), place.cta);
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const uint32_t to = ptx::smem_address(&shared_.parts[place.slot][part][b][lane_]);
        ptx::store_async_8(ptx::address_in(to, place.cta), sums[b], there);
      }
    }
  }

  // Adds a tile's parts up and writes its piece of y, if this is the warp to do that.
  __device__ __forceinline__ void finish(uint32_t tile, uint32_t tiles) const {
    const TilePlace place(tile);
    if (!is_mine(place)) return;
    wait(&shared_.part_there[place.slot], place.round);
    float2 sums[kBlocks] = {};
#pragma unroll 8
    for (uint32_t part = 0; part < kParts; ++part) {
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const float2 v = shared_.parts[place.slot][part][b][lane_];
        sums[b].x += v.x;
        sums[b].y += v.y;
      }
    }
    __syncwarp();
    if (tile + kSplit * kSlots < tiles) {  // somebody waits for the place
      if constexpr (kSplit == 1) {
        if (lane_ == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared_.parts_read[0][place.slot]));
      } else {
        if (lane_ == 0) await_parts(shared_, place.slot);
        __syncwarp();
        if (lane_ < kSplit) {
          const uint32_t read = ptx::smem_address(&shared_.parts_read[cta_][place.slot]);
          ptx::arrive_cluster_relaxed(ptx::address_in(read, lane_));
        }
      }
    }
    const uint32_t pair = pair_of(tile);
    const bool odd = lane_ / 4 % 2 != 0;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      // From a row of two tokens to both rows of a pair of one.
      const float other = __shfl_xor_sync(~0u, odd ? sums[b].x : sums[b].y, 4);
      const float2 rows = odd ? make_float2(other, sums[b].y) : make_float2(sums[b].x, other);
      const uint32_t token = token_of() + 8 * b;
      if (token < args_.tokens && pair < pairs_.end) write(pair, token, rows, residual_[b]);
    }
  }

 private:
  __device__ __forceinline__ static void await_parts(SharedMemory& shared, uint32_t slot) {
    ptx::mbarrier_arrive_expect(ptx::smem_address(&shared.part_there[slot]), sizeof shared.parts[slot]);
  }
  __device__ __forceinline__ static void wait(const uint64_t* barrier, uint32_t round) {
    if constexpr (kSplit == 1) {
      ptx::mbarrier_wait(ptx::smem_address(barrier), round & 1);
    } else {
      ptx::wait_cluster(ptx::smem_address(barrier), round & 1);
    }
  }
  __device__ __forceinline__ bool is_mine(const TilePlace& place) const {
    return place.cta == cta_ && place.warp == warp_;
  }
  // What finish() leaves to this lane.
  __device__ __forceinline__ uint32_t pair_of(uint32_t tile) const {
    return pairs_.begin + tile * abi::kLinearTilePairs + lane_ / 8;
  }
  __device__ __forceinline__ uint32_t token_of() const { return 2 * (lane_ % 4) + lane_ / 4 % 2; }

  __device__ __forceinline__ void write(uint32_t pair, uint32_t token, float2 v, uint32_t residual) const {
    if constexpr (kFp8) {
      v.x *= scales_.x;
      v.y *= scales_.y;
    }
    if constexpr (kNorm) {
      const float factor = norm_factor(args_, shared_, token);
      v.x *= factor;
      v.y *= factor;
    }
    write_pair<kBf16, kActivation>(args_, pair, token, v, bias_, residual);
  }

  const abi::LinearArgs& args_;
  SharedMemory& shared_;
  abi::LinearPairs pairs_;
  uint32_t cta_, warp_, lane_;
  // What expect() asked for: a warp has one tile to finish at most, for its next one is kParts further on.
  uint32_t bias_ = 0;
  float2 scales_ = {};
  uint32_t residual_[kBlocks] = {};
};

}  // namespace fovea::linear
