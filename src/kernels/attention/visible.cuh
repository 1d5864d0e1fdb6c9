// Values of tokens that some rows of a warp see and others do not. The product multiplies them by 0 for the rows that
// do not, which is right unless they are infinite or NaN: those tokens are kept out of the product and added to the
// rows that see them one by one. Only slices that a mask divides come here. Used by slice.cuh.
#pragma once

#include "kernels/attention/state.cuh"

namespace fovea::attention {

// The lane's four tokens of a slice (bit 2n + e: token 8n + 2c + e) as bits of all 16, and back.
__device__ __forceinline__ uint32_t as_slice_bits(uint32_t own, uint32_t lane) {
  return ((own & 3) | (own & 12) << 6) << 2 * (lane & 3);
}
__device__ __forceinline__ uint32_t as_own_bits(uint32_t slice_bits, uint32_t lane) {
  const uint32_t bits = slice_bits >> 2 * (lane & 3);
  return (bits & 3) | (bits >> 6 & 12);
}

// Whether one of the elements in a word of V is infinite or NaN.
__device__ __forceinline__ bool some_not_finite(uint32_t word) {
  if constexpr (kFp8) {
    bool some = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) some |= (word >> 8 * i & 0x7f) == 0x7f;
    return some;
  }
  constexpr uint32_t kExponent = kMmaBf16 ? 0x7f80 : 0x7c00;
  return (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
}

// Tokens of the slice that begins at token `first` of a tile of values which are not all finite, as bits.
template <class T>
__device__ __forceinline__ uint32_t not_finite_tokens(uint32_t v_tile, uint32_t first, uint32_t lane) {
  constexpr uint32_t kChunks = kRowBytes / 16;
  uint32_t found = 0;
#pragma unroll 1
  for (uint32_t i = lane; i < kSliceTokens * kChunks; i += 32) {
    const uint32_t token = i / kChunks;
    uint32_t words[4];
    ptx::load_shared_16(words, v_tile + T::chunk(first + token, i % kChunks));
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if (some_not_finite(words[w])) found |= 1u << token;
    }
  }
  return __reduce_or_sync(~0u, found);
}

// Two neighbouring elements of a token's values.
template <class T>
__device__ __forceinline__ float2 value_pair(uint32_t v_tile, uint32_t token, uint32_t column) {
  const uint32_t byte = column * kElementBits / 8;
  const uint32_t word = ptx::load_shared_4(v_tile + T::chunk(token, byte / 16) + (byte % 16 & ~3u)) >> 8 * (byte % 4);
  if constexpr (kFp8) {
    uint32_t low, high;
    ptx::halves_of_e4m3(word, low, high);
    return {ptx::unpack_low<false>(low), ptx::unpack_high<false>(low)};
  }
  return {ptx::unpack_low<kMmaBf16>(word), ptx::unpack_high<kMmaBf16>(word)};
}

// Adds tokens (bits of the slice) to the rows that see them. visible, P: of the lane, see run_slice().
__device__ __forceinline__ void add_tokens(State& state, uint32_t tokens, uint32_t visible, const uint32_t (&p)[4],
                                           const Slice& slice, uint32_t lane) {
#pragma unroll 1
  for (; tokens != 0; tokens &= tokens - 1) {
    const uint32_t token = __ffs(static_cast<int>(tokens)) - 1;
    const uint32_t n = token / 8;
    const uint32_t e = token % 2;
    const uint32_t holder = (lane & ~3u) | (token % 8 / 2);
    const uint32_t seen_there = __shfl_sync(~0u, visible, holder);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = __shfl_sync(~0u, n == 0 ? p[h] : p[2 + h], holder);
      if (!(seen_there >> (4 * h + 2 * n + e) & 1)) continue;
      const float weight = e == 0 ? ptx::unpack_low<kMmaBf16>(pair) : ptx::unpack_high<kMmaBf16>(pair);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const float2 v =
              value_pair<StageTile>(slice.v_tile, slice.in_stage + token, first_dim(b, lane) + p * kSecondPair);
          if constexpr (kFp8) {
            state.o[b][0][2 * h + p] += weight * v.x;
            state.o[b][1][2 * h + p] += weight * v.y;
          } else {
            state.o[b][p][2 * h] += weight * v.x;
            state.o[b][p][2 * h + 1] += weight * v.y;
          }
        }
      }
    }
    __syncwarp();
  }
}

// Which of the lane's four tokens the product is to take: those that some row sees, without those that it would leak to
// rows which do not; these are added here.
__device__ __forceinline__ uint32_t tokens_to_multiply(const Row (&rows)[2], uint32_t visible, const uint32_t (&p)[4],
                                                       State& state, const Slice& slice, uint32_t lane) {
  const uint32_t unseen = ~visible & ((rows[0].valid ? 0x0fu : 0u) | (rows[1].valid ? 0xf0u : 0u));
  uint32_t both = ((visible | visible >> 4) & 0xf) | ((unseen | unseen >> 4) & 0xf) << 4;
#pragma unroll
  for (int step = 4; step < 32; step *= 2) both |= __shfl_xor_sync(~0u, both, step);
  uint32_t tokens = both & 0xf;
  const uint32_t divided = tokens & both >> 4;
  if (__any_sync(~0u, divided != 0)) {
    const uint32_t leaking = not_finite_tokens<StageTile>(slice.v_tile, slice.in_stage, lane) &
                             __reduce_or_sync(~0u, as_slice_bits(divided, lane));
    if (leaking != 0) {
      tokens &= ~as_own_bits(leaking, lane);
      add_tokens(state, leaking, visible, p, slice, lane);
    }
  }
  return tokens;
}

}  // namespace fovea::attention
