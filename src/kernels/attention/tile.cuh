// How rows of K and V lie in shared memory, and the walk over them that products take: 16 tokens, 16 bytes of each at a
// time. Used by the loaders and by all arithmetic that reads shared memory.
#pragma once

#include "kernels/attention/config.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::attention {

inline constexpr uint32_t kPanelChunks = kPanelBytes / 16;

template <int kBegin, int kEnd, class F>
__device__ __forceinline__ void unrolled(const F& f) {
  if constexpr (kBegin < kEnd) {
    f.template operator()<kBegin>();
    unrolled<kBegin + 1, kEnd>(f);
  }
}

// What TMA's swizzle adds to the 16-byte chunk index within a row of a panel, by the row in its box.
__device__ __forceinline__ uint32_t swizzle_of(uint32_t row) {
  if constexpr (kPanelBytes == 128) return row & 7;
  if constexpr (kPanelBytes == 64) return (row >> 1) & 3;
  if constexpr (kPanelBytes == 32) return (row >> 2) & 1;
  return 0;
}

// [box][panel][token of the box][kPanelBytes], with boxes of kTokens, or one of them.
template <uint32_t kTokens, bool kOneBox>
struct Tile {
  static constexpr uint32_t kPanelStride = kTokens * kPanelBytes;

  // Byte offset of a token's row in panel 0, and of a 16-byte chunk of it.
  __device__ __forceinline__ static uint32_t row(uint32_t token) {
    if constexpr (kOneBox) return token * kPanelBytes;
    return token / kTokens * (kTokens * kRowBytes) + token % kTokens * kPanelBytes;
  }
  __device__ __forceinline__ static uint32_t swizzle(uint32_t token) {
    return swizzle_of(kOneBox ? token : token % kTokens);
  }
  __device__ __forceinline__ static uint32_t chunk(uint32_t token, uint32_t chunk) {
    return row(token) + chunk / kPanelChunks * kPanelStride + ((chunk % kPanelChunks ^ swizzle(token)) << 4);
  }

  // A lane's addresses for ldmatrix: chunk kFirst + chunk_in of its token; kFirst even, chunk_in 0 or 1.
  struct Lane {
    uint32_t base;
    uint32_t chunk;  // only where panels hold a single one

    __device__ __forceinline__ Lane(uint32_t tile, uint32_t token, uint32_t chunk_in) : chunk(chunk_in) {
      base = tile + row(token);
      if constexpr (kPanelChunks > 1) base |= (chunk ^ swizzle(token)) << 4;
    }
    template <uint32_t kFirst>
    __device__ __forceinline__ uint32_t of() const {
      if constexpr (kPanelChunks == 1) return base + (kFirst + chunk) * kPanelStride;
      return (base ^ (kFirst % kPanelChunks << 4)) + kFirst / kPanelChunks * kPanelStride;
    }
  };
};
using StageTile = Tile<kBoxTokens, false>;

// Which two of the four matrices (8 tokens, a chunk) of two chunks ldmatrix takes first: those of one chunk, or those
// of the first 8 tokens.
enum class Order { kTokens, kChunks };

// f<c>(words) for chunks 2c and 2c + 1 of the 16 tokens from `token` on.
template <class T, Order kOrder, bool kTransposed, class F>
__device__ __forceinline__ void for_chunk_pairs(uint32_t tile, uint32_t token, uint32_t lane, const F& f) {
  constexpr bool kTokensFirst = kOrder == Order::kTokens;
  const typename T::Lane at(tile, kTokensFirst ? token + (lane & 15) : token + (lane & 7) + (lane >> 4) * 8,
                            kTokensFirst ? lane >> 4 : lane >> 3 & 1);
  unrolled<0, kRowBytes / 32>([&]<int c>() {
    uint32_t x[4];
    if constexpr (kTransposed) {
      ptx::ldmatrix_x4_trans(x, at.template of<2 * c>());
    } else {
      ptx::ldmatrix_x4(x, at.template of<2 * c>());
    }
    f.template operator()<c>(x);
  });
}

// f<c>(word of tokens 0 .. 7, word of the others) for every chunk c of the 16 tokens from `token` on.
template <class T, Order kOrder, bool kTransposed, class F>
__device__ __forceinline__ void for_chunks(uint32_t tile, uint32_t token, uint32_t lane, const F& f) {
  constexpr int kSecond = kOrder == Order::kTokens ? 1 : 2, kLast = kRowBytes / 16 - 1;
  for_chunk_pairs<T, kOrder, kTransposed>(tile, token, lane, [&]<int c>(const uint32_t(&x)[4]) {
    f.template operator()<2 * c>(x[0], x[kSecond]);
    f.template operator()<2 * c + 1>(x[3 - kSecond], x[3]);
  });
  if constexpr (kLast % 2 == 0) {
    const typename T::Lane at(tile, token + (lane & 15), 0);
    uint32_t x[2];
    if constexpr (kTransposed) {
      ptx::ldmatrix_x2_trans(x, at.template of<kLast>());
    } else {
      ptx::ldmatrix_x2(x, at.template of<kLast>());
    }
    f.template operator()<kLast>(x[0], x[1]);
  }
}

}  // namespace fovea::attention
