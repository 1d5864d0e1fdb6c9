// Products of a warpgroup: 64 rows of weights, from registers, meet all tokens, which lie in shared memory.
#pragma once

#include "kernels/model/linear/batch_weights.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_tile.cuh"

namespace fovea::batch {

// Words of weights of kSlices slices, as the first operand takes them: rows lane / 4 and lane / 4 + 8 of a product are
// a pair, and both have words 0 and 1 of their 16 bytes in one product, 2 and 3 in the next.
template <uint32_t kSlices>
struct Words {
  uint32_t a[kSlices][2][4];

  __device__ __forceinline__ void put(uint32_t s, uint32_t row, const uint32_t (&w)[4]) {
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      a[s][n][row] = w[2 * n];
      a[s][n][row + 2] = w[2 * n + 1];
    }
  }
  // Of two slices lanes of odd pairs read the second one first, so that no two rows of a quarter warp meet in a bank.
  __device__ __forceinline__ void load(uint32_t from, bool odd) {
#pragma unroll
    for (uint32_t s = 0; s < kSlices; s += 2) {
#pragma unroll
      for (uint32_t row = 0; row < 2; ++row) {
        const uint32_t at = from + s * 64 + row * kPieceBytes;
        uint32_t first[4], second[4], low[4], high[4];
        ptx::load_shared_16(first, at + (odd && kSlices > 1 ? 64 : 0));
        if constexpr (kSlices == 1) {
          put(s, row, first);
          continue;
        }
        ptx::load_shared_16(second, at + (odd ? 0 : 64));
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          low[i] = odd ? second[i] : first[i];
          high[i] = odd ? first[i] : second[i];
        }
        put(s, row, low);
        put(s + 1, row, high);
      }
    }
  }
  __device__ __forceinline__ void multiply(float (&sums)[4 * kBlocks], uint32_t x, uint32_t fresh) const {
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t s = 0; s < kSlices; ++s) {
#pragma unroll
      for (uint32_t n = 0; n < 2; ++n) {
        const uint32_t at = s / 2 * kPanelBytes + s % 2 * 64 + n * 32;
        ptx::wgmma<kBf16, false>(sums, a[s][n], ptx::wgmma_matrix(x + at), s == 0 && n == 0 ? fresh : 0);
      }
    }
    ptx::wgmma_commit();
  }
};

// The next piece of the ring; x: that piece of the tokens. Loads of kAtOnce slices go on while products of those before
// run, and the last of those are still running at the end. between() is called on the way.
template <uint32_t kAtOnce, typename Between>
__device__ __forceinline__ void multiply_piece(Ring& ring, float (&sums)[4 * kBlocks], uint32_t slices, uint32_t x,
                                               uint32_t fresh, bool odd, const Between& between) {
  const uint32_t from = ring.begin();
  if (slices == kPieceSlices) {
    Words<kAtOnce> a, b;
#pragma unroll
    for (uint32_t s = 0; s < kPieceSlices; s += 2 * kAtOnce) {
      a.load(from + s * 64, odd);
      a.multiply(sums, x + s / 2 * kPanelBytes, s == 0 ? fresh : 0);
      if (s == 0) between();
      ptx::wgmma_wait<1>();
      const uint32_t then = s + kAtOnce;
      b.load(from + then * 64, odd);
      b.multiply(sums, x + then / 2 * kPanelBytes, 0);
      if (then + kAtOnce == kPieceSlices) ring.end();
      ptx::wgmma_wait<1>();
    }
  } else {
    ptx::wgmma_wait<0>();
#pragma unroll 1
    for (uint32_t s = 0; s < slices; ++s) {
      Words<1> a;
      a.load(from + s * 64, odd);
      a.multiply(sums, x + s / 2 * kPanelBytes + s % 2 * 64, s == 0 ? fresh : 0);
      ptx::wgmma_wait<0>();
    }
    between();
    ring.end();
  }
}

}  // namespace fovea::batch
