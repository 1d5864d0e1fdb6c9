// From the parts of a tile's sums, one a CTA of the cluster, to y: each CTA adds up what belongs to its tokens in the
// order of k, so that the bits of y depend on nothing but x and w, then what epilogue.cuh says.
#pragma once

#include "kernels/model/linear/batch_tokens.cuh"
#include "kernels/model/linear/epilogue.cuh"

namespace fovea::batch {

// By one thread, before the CTAs of the cluster meet.
__device__ __forceinline__ void init_sums(SharedMemory& shared) {
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    ptx::mbarrier_init(ptx::smem_address(&shared.part_there[warp]), 1);
    ptx::mbarrier_init(ptx::smem_address(&shared.parts_read[warp]), kFinishers);
  }
  if constexpr (kNorm) ptx::mbarrier_init(ptx::smem_address(&shared.squares_there), 1);
  ptx::fence_mbarrier_init();
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    ptx::mbarrier_arrive_expect(ptx::smem_address(&shared.part_there[warp]), kPartBytes);
  }
  if constexpr (kNorm) ptx::mbarrier_arrive_expect(ptx::smem_address(&shared.squares_there), sizeof shared.squares);
}

class Sums {
 public:
  __device__ __forceinline__ Sums(const abi::LinearArgs& args, SharedMemory& shared, const Tiles& tiles, uint32_t cta,
                                  uint32_t warp, uint32_t lane)
      : args_(args), shared_(shared), tiles_(tiles), cta_(cta), warp_(warp), lane_(lane) {
    first_ = kSharers > 1 ? cta % kBlocks : cta;
    mine_ = kSharers == 1 || cta / kBlocks == warp % kSharers;
    there_ = ptx::smem_address(&shared.part_there[warp]);
    read_ = ptx::smem_address(&shared.parts_read[warp]);
  }

  // The warp's part of a tile, fragments of 8 tokens one after the other.
  __device__ __forceinline__ void give(uint32_t tile, const float (&sums)[4 * kBlocks]) const {
    if (tile > 0) ptx::wait_cluster(read_, (tile - 1) & 1);
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const uint32_t to = kSharers > 1 ? b + kBlocks * (warp_ % kSharers) : b % kSplit;
      const uint32_t at = ptx::smem_address(&shared_.parts[warp_][kSharers > 1 ? 0 : b / kSplit][cta_][lane_]);
      ptx::store_async_16(ptx::address_in(at, to),
                          make_float4(sums[4 * b], sums[4 * b + 1], sums[4 * b + 2], sums[4 * b + 3]),
                          ptx::address_in(there_, to));
    }
  }

  // Adds up what the CTAs gave of this one's tokens, and writes its piece of y.
  __device__ __forceinline__ void finish(uint32_t tile) {
    if (!mine_) return;
    const uint32_t pair = tiles_.first(tile, warp_ % 4) + lane_ / 4;
    const bool is_row = lane_ / 4 < tiles_.pairs(tile, warp_ % 4);
    uint32_t residual[kOwned][2] = {}, bias = 0;
    if (is_row) load(pair, residual, bias);
    ptx::wait_cluster(there_, tile & 1);
    float4 sums[kOwned] = {};
#pragma unroll
    for (uint32_t i = 0; i < kOwned; ++i) {
#pragma unroll
      for (uint32_t part = 0; part < kSplit; ++part) {
        const float4 v = shared_.parts[warp_][i][part][lane_];
        sums[i].x += v.x;
        sums[i].y += v.y;
        sums[i].z += v.z;
        sums[i].w += v.w;
      }
    }
    __syncwarp();
    if (tile + 1 < tiles_.count) {  // somebody waits for the place
      if (lane_ == 0) ptx::mbarrier_arrive_expect(there_, kPartBytes);
      __syncwarp();
      if (lane_ < kSplit) ptx::arrive_cluster_relaxed(ptx::address_in(read_, lane_));
    }
    if (kNorm && tile == 0) {
#pragma unroll
      for (uint32_t i = 0; i < kOwned; ++i) {
        const uint32_t at = 8 * i + 2 * (lane_ % 4);
        factors_[i].x = norm_factor(args_, shared_, at);
        factors_[i].y = norm_factor(args_, shared_, at + 1);
      }
    }
    if (!is_row) return;
#pragma unroll
    for (uint32_t i = 0; i < kOwned; ++i) {
      write(pair, token_of(i), make_float2(sums[i].x, sums[i].z), factors_[i].x, bias, residual[i][0]);
      write(pair, token_of(i) + 1, make_float2(sums[i].y, sums[i].w), factors_[i].y, bias, residual[i][1]);
    }
  }

 private:
  __device__ __forceinline__ uint32_t token_of(uint32_t i) const { return 8 * (first_ + i * kSplit) + 2 * (lane_ % 4); }

  // What is added; early, for memory is far.
  __device__ __forceinline__ void load(uint32_t pair, uint32_t (&residual)[kOwned][2], uint32_t& bias) const {
    if (!kGated && args_.residual != nullptr) {
#pragma unroll
      for (uint32_t i = 0; i < kOwned; ++i) {
#pragma unroll
        for (uint32_t t = 0; t < 2; ++t) {
          const uint32_t token = token_of(i) + t;
          const auto* const from = static_cast<const uint16_t*>(args_.residual) + token * args_.y_stride + 2ull * pair;
          if (token < args_.tokens) residual[i][t] = __ldcg(reinterpret_cast<const uint32_t*>(from));
        }
      }
    }
    if (args_.bias != nullptr) {
      const auto* const from = static_cast<const uint16_t*>(args_.bias);
      bias = from[kGated ? pair : 2 * pair] |
             static_cast<uint32_t>(from[kGated ? pair + args_.shape.half : 2 * pair + 1]) << 16;
    }
  }

  __device__ __forceinline__ void write(uint32_t pair, uint32_t token, float2 v, float factor, uint32_t bias,
                                        uint32_t residual) const {
    if (token >= args_.tokens) return;
    if constexpr (kNorm) {
      v.x *= factor;
      v.y *= factor;
    }
    linear::write_pair<kBf16, kActivation>(args_, pair, token, v, bias, residual);
  }

  const abi::LinearArgs& args_;
  SharedMemory& shared_;
  Tiles tiles_;
  uint32_t cta_, warp_, lane_;
  uint32_t first_;  // block of tokens that this CTA finishes
  bool mine_;
  uint32_t there_, read_;
  float2 factors_[kOwned] = {};
};

}  // namespace fovea::batch
