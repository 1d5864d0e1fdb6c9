// A warp's slices of x, in its registers for as long as the kernel runs, and what they add to the tokens' norms.
#pragma once

#include "kernels/linear/config.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::linear {

// The norm's weights of a warp's slices to shared memory; zeros where it has fewer, as x has there.
__device__ __forceinline__ void copy_norm(const abi::LinearArgs& args, SharedMemory& shared, abi::LinearSlices slices,
                                          uint32_t warp, uint32_t lane) {
  const uint32_t bytes = (slices.end - slices.begin) * 64;
  const uint32_t to = ptx::smem_address(shared.norm[warp]), there = ptx::smem_address(&shared.norm_there[warp]);
  for (uint32_t at = bytes + 4 * lane; at < sizeof shared.norm[0]; at += 128) {
    *reinterpret_cast<uint32_t*>(shared.norm[warp] + at) = 0;
  }
  if (lane == 0) {
    ptx::mbarrier_init(there, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(there, bytes);
    if (bytes != 0) {
      ptx::copy_bytes(to, static_cast<const uint16_t*>(args.norm) + slices.begin * abi::kLinearSlice, bytes, there);
    }
  }
  __syncwarp();
}

// Lane 4t + c has numbers 8c..8c+7 of every slice of token t. The order of k within a slice is free as long as weights
// have the same: words 0 and 2 face the first product of products.cuh, words 1 and 3 the second.
struct Tokens {
  uint32_t words[kSlices][kBlocks][4];

  __device__ __forceinline__ void load(const abi::LinearArgs& args, abi::LinearSlices slices, uint32_t lane) {
    const uint32_t count = slices.end - slices.begin;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const uint32_t token = lane / 4 + 8 * b;
      const auto* const from = static_cast<const uint16_t*>(args.x) + token * args.x_stride +
                               slices.begin * abi::kLinearSlice + lane % 4 * 8;
#pragma unroll
      for (uint32_t s = 0; s < kSlices; ++s) {
        uint4 v = make_uint4(0, 0, 0, 0);
        // Past the first-level cache: an earlier kernel may have left what was there before.
        if (token < args.tokens && s < count) v = __ldcg(reinterpret_cast<const uint4*>(from + s * abi::kLinearSlice));
        words[s][b][0] = v.x;
        words[s][b][1] = v.z;
        words[s][b][2] = v.y;
        words[s][b][3] = v.w;
      }
    }
  }

  // Leaves the sums of squares to the CTAs of the cluster, and multiplies by the norm's weights; what a token is
  // divided by is applied to its sums.
  __device__ __forceinline__ void begin_norm(const abi::LinearArgs& args, SharedMemory& shared, uint32_t part,
                                             uint32_t warp, uint32_t lane) {
    ptx::mbarrier_wait(ptx::smem_address(&shared.norm_there[warp]), 0);
    const uint32_t from = ptx::smem_address(shared.norm[warp]) + lane % 4 * 16;
    float squares[kBlocks] = {};
#pragma unroll
    for (uint32_t s = 0; s < kSlices; ++s) {
      uint32_t weights[4];
      ptx::load_shared_16(weights, from + s * 64);
#pragma unroll
      for (uint32_t n = 0; n < 4 * kBlocks; ++n) {
        uint32_t& word = words[s][n / 4][n % 4];
        const uint32_t w = weights[n % 4 / 2 + n % 2 * 2];
        const float low = ptx::unpack_low<kBf16>(word), high = ptx::unpack_high<kBf16>(word);
        squares[n / 4] = fmaf(low, low, fmaf(high, high, squares[n / 4]));
        word = ptx::multiply_add_bf16(word, w, args.norm_plus_one != 0 ? word : 0u);
      }
    }
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      squares[b] += __shfl_xor_sync(~0u, squares[b], 1);
      squares[b] += __shfl_xor_sync(~0u, squares[b], 2);
      const uint32_t to = ptx::smem_address(&shared.squares[part][lane / 4 + 8 * b]);
      if constexpr (kSplit == 1) {
        if (lane % 4 == 0) shared.squares[part][lane / 4 + 8 * b] = squares[b];
      } else {
        const uint32_t there = ptx::smem_address(&shared.squares_there);
        for (uint32_t cta = lane % 4; cta < kSplit; cta += 4) {
          ptx::store_async_4(ptx::address_in(to, cta), squares[b], ptx::address_in(there, cta));
        }
      }
    }
  }
};

// What sums of the token are multiplied by; once the parts of a tile are there.
__device__ __forceinline__ float norm_factor(const abi::LinearArgs& args, const SharedMemory& shared, uint32_t token) {
  if constexpr (kSplit > 1) ptx::wait_cluster(ptx::smem_address(&shared.squares_there), 0);
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t part = 0; part < kParts; ++part) squares += shared.squares[part][token];
  return rsqrtf(squares / static_cast<float>(args.shape.k) + args.norm_eps);
}

}  // namespace fovea::linear
