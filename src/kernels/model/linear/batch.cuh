// Matrix products of a batch in decode, y = x w^T for up to 64 rows of x, at the speed of memory. A cluster's CTAs take
// shares of k of the same rows of w: a CTA keeps its share of x in shared memory, and nothing but weights streams.
// Products are transposed: 64 rows of w, from registers, meet all tokens in one wgmma, and the CTAs of a cluster leave
// the parts of each sum to the one that adds them up.
//
// Grid: as many clusters as run at once, of split CTAs of abi::kBatchThreads; LinearShape::clusters is twice that.
// Dynamic shared memory: abi::batch_smem_bytes(); to be launched with programmatic serialization.
// docs/kernels/linear.md has the design and the figures.
#pragma once

#include "kernels/model/linear/batch_products.cuh"
#include "kernels/model/linear/batch_sums.cuh"
#include "kernels/ptx/sync.cuh"

#if defined(FOVEA_BATCH_BF16) && FOVEA_ARCH >= 900

namespace fovea::batch {

// Of the warps that multiply.
__device__ __forceinline__ void sync_multipliers() { ptx::barrier_sync(1, kWarps * 32); }

// What stays the same for a warp that multiplies.
struct Work {
  uint32_t tiles, slices, pieces;
  uint32_t x;  // where it lies
  bool odd;    // see Words::load()
};

// The CTA keeps all of its share of x: tile after tile, and the one before is finished on the way.
__device__ __forceinline__ void multiply_kept(const Work& work, Tokens& tokens, Ring& ring, Sums& sums, uint32_t cta) {
  constexpr uint32_t kAtOnce = Tokens::kAtOnce < kPieces ? Tokens::kAtOnce : kPieces;
#pragma unroll
  for (uint32_t first = 0; first < kPieces; first += kAtOnce) {
    Tokens::Piece p[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) tokens.load(first + i, p[i]);
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first + i >= kPieces) continue;
      if constexpr (kNorm) tokens.norm(first + i, p[i]);
      tokens.store(first + i, p[i]);
    }
  }
  if constexpr (kNorm) tokens.give_squares(cta);
  ptx::fence_before_async_copies();
  sync_multipliers();
#pragma unroll 1
  for (uint32_t tile = 0; tile < work.tiles; ++tile) {
    float products[4 * kBlocks];
#pragma unroll 1
    for (uint32_t piece = 0; piece < work.pieces; ++piece) {
      multiply_piece<4>(ring, products, min(kPieceSlices, work.slices - piece * kPieceSlices),
                        work.x + piece * kPiecePanels * kPanelBytes, piece == 0 ? 1 : 0, work.odd, [&] {
                          if (tile > 0 && piece == 0) sums.finish(tile - 1);
                        });
    }
    ptx::wgmma_wait<0>();
    sums.give(tile, products);
  }
  sums.finish(work.tiles - 1);
}

// x is streamed, once for kHeld tiles: a piece is brought while the one before is multiplied.
__device__ __forceinline__ void multiply_streamed(const Work& work, Tokens& tokens, Ring& ring, Sums& sums,
                                                  uint32_t cta) {
  constexpr uint32_t kPart = Tokens::kBrought / 2;
  Tokens::Piece p;
  tokens.load(0, p);
  if constexpr (kNorm) tokens.norm(0, p);
  tokens.store(0, p);
  ptx::fence_before_async_copies();
  sync_multipliers();
  uint32_t place = 0;
#pragma unroll 1
  for (uint32_t round = 0; round < work.tiles; round += kHeld) {
    float products[kHeld][4 * kBlocks];
#pragma unroll 1
    for (uint32_t piece = 0; piece < work.pieces; ++piece) {
      const uint32_t next = piece + 1 < work.pieces ? piece + 1 : 0;
      const bool more = next != 0 || round + kHeld < work.tiles;
      // In two parts, for registers; with a norm at once.
      if (more) tokens.load<0, kNorm ? Tokens::kBrought : kPart>(next, p);
#pragma unroll
      for (uint32_t h = 0; h < kHeld; ++h) {
        if (!kNorm && h == 1 && more) {
          tokens.store<0, kPart>(place ^ 1, p);
          tokens.load<kPart, Tokens::kBrought>(next, p);
        }
        if (round + h < work.tiles) {
          multiply_piece<2>(ring, products[h], min(kPieceSlices, work.slices - piece * kPieceSlices),
                            work.x + place * kPiecePanels * kPanelBytes, piece == 0 ? 1 : 0, work.odd, [] {});
        }
      }
      ptx::wgmma_wait<0>();
      if constexpr (kNorm) {
        if (round == 0 && next == 0) tokens.give_squares(cta);  // all of x was there
      }
      if (!more) break;
      place ^= 1;
      if constexpr (kNorm) {
        tokens.norm(next, p);
        tokens.store(place, p);
      } else {
        tokens.store<kPart, Tokens::kBrought>(place, p);
      }
      ptx::fence_before_async_copies();
      sync_multipliers();
    }
#pragma unroll
    for (uint32_t h = 0; h < kHeld; ++h) {
      if (round + h < work.tiles) {
        sums.give(round + h, products[h]);
        sums.finish(round + h);
      }
    }
  }
}

}  // namespace fovea::batch

extern "C" __global__ void __launch_bounds__(fovea::abi::kBatchThreads, 1)
    fovea_linear_batch(const __grid_constant__ fovea::abi::LinearArgs args) {
  using namespace fovea;
  using namespace fovea::batch;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  auto& shared = *reinterpret_cast<SharedMemory*>(dynamic);
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t cta = blockIdx.x % kSplit, cluster = blockIdx.x / kSplit;
  if (threadIdx.x == 0) init_sums(shared);
  if (warp >= kWarps) {
    ptx::setmaxnreg_dec<40>();
    if (lane == 0) init_rings(shared, warp - kWarps);
    ptx::cluster_arrive();
    produce(args.shape, shared, cta, cluster, warp - kWarps, lane);
    ptx::cluster_wait();
    return;
  }
  ptx::setmaxnreg_inc<232>();
  ptx::cluster_arrive();
  if (kNorm && warp == 0) prefetch_norm(args, cta, lane);
  ptx::cluster_wait();
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();

  const Tiles tiles(args.shape, cluster * kGroups + warp / 4);
  const abi::LinearSlices slices = slices_of(args.shape, cta);
  const Work work = {tiles.count, slices.end - slices.begin, pieces_of(slices),
                     __shfl_sync(~0u, ptx::smem_address(shared.x), 0), lane / 4 % 2 != 0};
  Ring ring(shared, warp, lane);
  Tokens tokens(args, shared, slices, warp, lane);
  Sums sums(args, shared, tiles, cta, warp, lane);
  if constexpr (kStreamed) {
    multiply_streamed(work, tokens, ring, sums, cta);
  } else {
    multiply_kept(work, tokens, ring, sums, cta);
  }
  // Nobody leaves while others send to it: parts and leave to send them were waited for, but squares only by some.
  if constexpr (kNorm) ptx::wait_cluster(ptx::smem_address(&shared.squares_there), 0);
}

#endif
