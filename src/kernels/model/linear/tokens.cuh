// A warp's slices of x, in its registers for as long as the kernel runs, and what they add to the tokens' norms.
#pragma once

#include "kernels/model/linear/config.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::linear {

// The norm's weights of a warp's slices to shared memory; zeros where it has fewer, as x has there.
__device__ __forceinline__ void copy_norm(const abi::LinearArgs& args, SharedMemory& shared, abi::LinearSlices slices,
                                          uint32_t warp, uint32_t lane) {
  const uint32_t bytes = (slices.end - slices.begin) * kXInSlice * 64;
  const uint32_t to = ptx::smem_address(shared.norm[warp]), there = ptx::smem_address(&shared.norm_there[warp]);
  for (uint32_t at = bytes + 4 * lane; at < sizeof shared.norm[0]; at += 128) {
    *reinterpret_cast<uint32_t*>(shared.norm[warp] + at) = 0;
  }
  if (lane == 0) {
    ptx::mbarrier_init(there, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(there, bytes);
    if (bytes != 0) {
      ptx::bulk_load(to, static_cast<const uint16_t*>(args.norm) + slices.begin * kWeightSlice, bytes, there);
    }
  }
  __syncwarp();
}

// Where lane % 4 = c finds its 8 numbers of slice s of x: in the order in which weights of 16 bytes lie in their slice.
__device__ __forceinline__ uint32_t number_of(uint32_t s, uint32_t c) {
  return kFp8 ? s / 2 * 64 + c * 16 + s % 2 * 8 : s * 32 + c * 8;
}
// 8 numbers in a row as the products need them: words 0 and 1 for the first, words 2 and 3 for the second, which meet
// the words of weights in the order 0, 2 and 1, 3; of e4m3 those are every second number.
__device__ __forceinline__ void arrange(uint4 v, uint32_t (&words)[4]) {
  words[0] = kFp8 ? __byte_perm(v.x, v.y, 0x5410) : v.x;
  words[1] = kFp8 ? __byte_perm(v.z, v.w, 0x5410) : v.z;
  words[2] = kFp8 ? __byte_perm(v.x, v.y, 0x7632) : v.y;
  words[3] = kFp8 ? __byte_perm(v.z, v.w, 0x7632) : v.w;
}

// Lane 4t + c has 8 numbers of every slice of token t. The order of k within a slice is free as long as weights have
// the same.
struct Tokens {
  uint32_t words[kXSlices][kBlocks][4];

  __device__ __forceinline__ void load(const abi::LinearArgs& args, abi::LinearSlices slices, uint32_t lane) {
    const uint32_t count = (slices.end - slices.begin) * kXInSlice;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const uint32_t token = lane / 4 + 8 * b;
      const auto* const from =
          static_cast<const uint16_t*>(args.x) + token * args.x_stride + slices.begin * kWeightSlice;
#pragma unroll
      for (uint32_t s = 0; s < kXSlices; ++s) {
        uint4 v = make_uint4(0, 0, 0, 0);
        // Past the first-level cache: an earlier kernel may have left what was there before.
        if (token < args.tokens && s < count) {
          v = __ldcg(reinterpret_cast<const uint4*>(from + number_of(s, lane % 4)));
        }
        arrange(v, words[s][b]);
      }
    }
  }

  // Leaves the sums of squares to the CTAs of the cluster, and multiplies by the norm's weights; what a token is
  // divided by is applied to its sums.
  __device__ __forceinline__ void begin_norm(const abi::LinearArgs& args, SharedMemory& shared, uint32_t part,
                                             uint32_t warp, uint32_t lane) {
    ptx::mbarrier_wait(ptx::smem_address(&shared.norm_there[warp]), 0);
    const uint32_t from = ptx::smem_address(shared.norm[warp]);
    float squares[kBlocks] = {};
#pragma unroll
    for (uint32_t s = 0; s < kXSlices; ++s) {
      uint32_t v[4], weights[4];
      ptx::load_shared_16(v, from + number_of(s, lane % 4) * 2);
      arrange(make_uint4(v[0], v[1], v[2], v[3]), weights);
#pragma unroll
      for (uint32_t n = 0; n < 4 * kBlocks; ++n) {
        uint32_t& word = words[s][n / 4][n % 4];
        const uint32_t w = weights[n % 4];
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

  // What bf16 weights of e4m3 lack. Numbers from 2^28 on would leave the range; sums are made smaller again at the end.
  __device__ __forceinline__ void grow() {
#pragma unroll
    for (uint32_t s = 0; s < kXSlices; ++s) {
#pragma unroll
      for (uint32_t n = 0; n < 4 * kBlocks; ++n) words[s][n / 4][n % 4] = ptx::grown_bf16(words[s][n / 4][n % 4]);
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
