// Decode's matrix products, y = x w^T for 1 to 16 rows of x, at the speed of memory: every warp streams its slices of k
// of the cluster's rows of w through a ring of its own, meets them with x in its registers, and leaves a part of each
// sum to the warp that adds the tile up. Products are transposed: 8 rows of w stand twice in the 16 rows of A.
//
// Grid: LinearShape::clusters * split CTAs of kLinearWarps warps, in clusters of split; dynamic shared memory:
// abi::linear_smem_bytes(); to be launched with programmatic serialization. docs/kernels/linear.md has the design and
// the figures.
#pragma once

#include "kernels/model/linear/sums.cuh"
#include "kernels/model/linear/weights.cuh"
#include "kernels/ptx/sync.cuh"

#if defined(FOVEA_LINEAR_BF16) && FOVEA_ARCH >= 900

namespace fovea::linear {

// A lane's 16 bytes of a row, or 8 of e4m3, are all of A: words 0 and 2 are row lane / 4 of a product, words 1 and 3
// row lane / 4 + 8. The first product takes x as words 0 and 2 need it, the second as words 1 and 3 do; the other half
// of each is dropped.
struct TileSums {
  float c[kBlocks][2][4] = {};

  __device__ __forceinline__ void add(uint32_t slice, const uint32_t (&w)[4], const Tokens& x) {
    if constexpr (kFp8) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        uint32_t wide[4];
        ptx::shrunk_e4m3<kBf16>(w[2 * half], wide[0], wide[1]);
        ptx::shrunk_e4m3<kBf16>(w[2 * half + 1], wide[2], wide[3]);
        multiply(2 * slice + half, wide, x);
      }
    } else {
      multiply(slice, w, x);
    }
  }
  __device__ __forceinline__ void multiply(uint32_t slice, const uint32_t (&w)[4], const Tokens& x) {
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      ptx::mma_16816<kBf16>(c[b][0], w, x.words[slice][b][0], x.words[slice][b][1]);
      ptx::mma_16816<kBf16>(c[b][1], w, x.words[slice][b][2], x.words[slice][b][3]);
    }
  }
  __device__ __forceinline__ void sums(float2 (&sums)[kBlocks]) const {
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) sums[b] = make_float2(c[b][0][0] + c[b][1][2], c[b][0][1] + c[b][1][3]);
  }
};

__device__ __forceinline__ void multiply_tile(WeightStream& weights, const Tokens& x, TileSums& tile) {
  constexpr uint32_t kAtOnce = 4;  // loads under way
#pragma unroll
  for (uint32_t first = 0; first < kSlices; first += kRing.slices) {
    if (first >= weights.count()) break;
    const uint32_t from = weights.begin();
    if (first + kRing.slices <= weights.count()) {
#pragma unroll
      for (uint32_t s = 0; s < kRing.slices; s += kAtOnce) {
        uint32_t w[kAtOnce][4];
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) ptx::load_shared_16(w[i], from + (s + i) * 64);
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) tile.add(first + s + i, w[i], x);
      }
    } else {
#pragma unroll
      for (uint32_t s = 0; s + 1 < kRing.slices; ++s) {
        if (first + s >= weights.count()) break;
        uint32_t w[4];
        ptx::load_shared_16(w, from + s * 64);
        tile.add(first + s, w, x);
      }
    }
    weights.end();
  }
}

}  // namespace fovea::linear

extern "C" __global__ void __launch_bounds__(fovea::abi::kLinearWarps * 32, FOVEA_LINEAR_CTAS)
    fovea_linear(const __grid_constant__ fovea::abi::LinearArgs args) {
  using namespace fovea;
  using namespace fovea::linear;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& shared = *reinterpret_cast<SharedMemory*>(dynamic);
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t cta = blockIdx.x % kSplit, part = cta * kWarps + warp;
  const abi::LinearPairs pairs = abi::linear_pairs(args.shape, blockIdx.x / kSplit);
  const abi::LinearSlices slices = abi::linear_slices(args.shape, part, 1);
  const uint32_t tiles = (pairs.end - pairs.begin + abi::kLinearTilePairs - 1) / abi::kLinearTilePairs;

  if (threadIdx.x == 0) Sums::init_barriers(shared);
  if constexpr (kSplit > 1) ptx::cluster_arrive();
  WeightStream weights(args.shape, shared, pairs, slices, warp, lane);
  if constexpr (kNorm) copy_norm(args, shared, slices, warp, lane);
  if constexpr (kSplit > 1) {
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  if (args.early >= tiles) ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();

  Tokens x;
  x.load(args, slices, lane);
  if constexpr (kNorm) x.begin_norm(args, shared, part, warp, lane);
  if constexpr (kFp8 && kBf16) x.grow();
  Sums sums(args, shared, pairs, cta, warp, lane);
  for (uint32_t tile = 0; tile <= tiles; ++tile) {  // multiplied, and the one before finished
    if (tile + args.early == tiles) ptx::griddepcontrol_launch_dependents();
    if (tile < tiles) {
      sums.expect(tile);
      TileSums products;
      multiply_tile(weights, x, products);
      float2 of_warp[kBlocks];
      products.sums(of_warp);
      sums.give(tile, of_warp);
    }
    if (tile > 0) sums.finish(tile - 1, tiles);
  }
  // Nobody leaves while others send to it: parts and leave to send them were waited for, but squares only by some.
  if constexpr (kSplit > 1 && kNorm) ptx::wait_cluster(ptx::smem_address(&shared.squares_there), 0);
}

#endif
