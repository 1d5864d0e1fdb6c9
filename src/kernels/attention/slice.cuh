// One warp's arithmetic: 16 rows against 16 tokens, and the state that goes from slice to slice (online softmax in base
// 2). All roles, tile classes and storage types share it.
#pragma once

#include "kernels/attention/visible.cuh"
#include "kernels/ptx/sync.cuh"

namespace fovea::attention {

// Four neighbouring keys of a byte each as operands of products.
__device__ __forceinline__ void key_operands(uint32_t x, uint32_t& low, uint32_t& high) {
  if constexpr (kFp8) {
    ptx::halves_of_e4m3(x, low, high);
  } else {
    low = ptx::codes_of_bytes<0>(x);
    high = ptx::codes_of_bytes<1>(x);
  }
}

// logits[n] = Q K^T for tokens 8n.. of the slice.
__device__ __forceinline__ void multiply_keys(const Queries& q, const Slice& slice, uint32_t lane,
                                              float (&logits)[2][4]) {
  float odd[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    logits[i / 4][i % 4] = kIntegers ? q.bias[kIntegers ? i % 4 / 2 : 0] : 0.0f;
    odd[i / 4][i % 4] = 0.0f;
  }
  if constexpr (!kNarrow) {
    for_chunk_pairs<StageTile, Order::kChunks, false>(slice.k_tile, slice.in_stage, lane,
                                                      [&]<int b>(const uint32_t(&k)[4]) {
                                                        float(&to)[2][4] = b % 2 == 0 ? logits : odd;
                                                        uint32_t a[4];
                                                        q.get<b>(a);
                                                        ptx::mma_16816<kMmaBf16>(to[0], a, k[0], k[1]);
                                                        ptx::mma_16816<kMmaBf16>(to[1], a, k[2], k[3]);
                                                      });
  } else {
    // A chunk is a block of dims; of int4 two.
    for_chunks<StageTile, Order::kChunks, false>(
        slice.k_tile, slice.in_stage, lane, [&]<int c>(uint32_t first, uint32_t second) {
          uint32_t a[4];
          if constexpr (kInt4) {
            q.get<2 * c>(a);
            ptx::mma_16816<false>(logits[0], a, ptx::codes_of_half_bytes<0>(first), ptx::codes_of_half_bytes<1>(first));
            ptx::mma_16816<false>(logits[1], a, ptx::codes_of_half_bytes<0>(second),
                                  ptx::codes_of_half_bytes<1>(second));
            q.get<2 * c + 1>(a);
            ptx::mma_16816<false>(odd[0], a, ptx::codes_of_half_bytes<2>(first), ptx::codes_of_half_bytes<3>(first));
            ptx::mma_16816<false>(odd[1], a, ptx::codes_of_half_bytes<2>(second), ptx::codes_of_half_bytes<3>(second));
          } else {
            q.get<c>(a);
            uint32_t low, high;
            float(&to)[2][4] = c % 2 == 0 ? logits : odd;
            key_operands(first, low, high);
            ptx::mma_16816<false>(to[0], a, low, high);
            key_operands(second, low, high);
            ptx::mma_16816<false>(to[1], a, low, high);
          }
        });
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) logits[i / 4][i % 4] += odd[i / 4][i % 4];
}

// state.o += P V. tokens: which of the lane's four tokens of V (2c, 2c + 1, 8 + 2c, 9 + 2c) exist for anybody;
// the others may hold anything, NaN too.
template <bool kMasked>
__device__ __forceinline__ void multiply_values(State& state, const uint32_t (&p)[4], const Slice& slice, uint32_t lane,
                                                uint32_t tokens) {
  uint32_t keep[2];
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      keep[i] = (tokens >> (2 * i) & 1 ? 0xffffu : 0u) | (tokens >> (2 * i + 1) & 1 ? 0xffff0000u : 0u);
    }
  }
  if constexpr (!kNarrow) {
    for_chunk_pairs<StageTile, Order::kTokens, true>(slice.v_tile, slice.in_stage, lane, [&]<int b>(uint32_t(&v)[4]) {
      if constexpr (kMasked) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] &= keep[i % 2];
      }
      ptx::mma_16816<kMmaBf16>(state.o[b][0], p, v[0], v[1]);
      ptx::mma_16816<kMmaBf16>(state.o[b][1], p, v[2], v[3]);
    });
  } else {
    // A register holds two dims of two tokens, the even ones for n-tile 0, the odd ones for n-tile 1; of int4 four, for
    // the n-tiles of two blocks. Integers are finite.
    for_chunks<StageTile, Order::kTokens, true>(
        slice.v_tile, slice.in_stage, lane, [&]<int c>(uint32_t first, uint32_t second) {
          const auto add = [&](int b, int n, uint32_t low, uint32_t high) {
            ptx::mma_16816<false>(state.o[b][n], p, low, high);
          };
          if constexpr (kInt4) {
            add(2 * c, 0, ptx::codes_of_half_bytes<0>(first), ptx::codes_of_half_bytes<0>(second));
            add(2 * c, 1, ptx::codes_of_half_bytes<1>(first), ptx::codes_of_half_bytes<1>(second));
            add(2 * c + 1, 0, ptx::codes_of_half_bytes<2>(first), ptx::codes_of_half_bytes<2>(second));
            add(2 * c + 1, 1, ptx::codes_of_half_bytes<3>(first), ptx::codes_of_half_bytes<3>(second));
          } else if constexpr (kInt8) {
            add(c, 0, ptx::codes_of_even_bytes(first), ptx::codes_of_even_bytes(second));
            add(c, 1, ptx::codes_of_odd_bytes(first), ptx::codes_of_odd_bytes(second));
          } else {
            if constexpr (kMasked) {
              first &= keep[0];
              second &= keep[1];
            }
            uint32_t low, high;
            ptx::halves_of_e4m3(__byte_perm(first, second, 0x6420), low, high);
            add(c, 0, low, high);
            ptx::halves_of_e4m3(__byte_perm(first, second, 0x7531), low, high);
            add(c, 1, low, high);
          }
        });
  }
}

// Scale and zero of the lane's tokens 8n + 2c and 8n + 2c + 1 of a slice, K's or V's; a KvScale is (scale, zero).
struct TokenScales {
  float scale[2][2];
  float zero[2][2];

  __device__ __forceinline__ TokenScales(uint32_t scales, uint32_t slice_in_stage, uint32_t lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t word = ptx::load_shared_4(scales + 4 * (slice_in_stage + 8 * n + 2 * (lane & 3) + e));
        scale[n][e] = ptx::unpack_low<false>(word);
        zero[n][e] = ptx::unpack_high<false>(word);
      }
    }
  }
};

// P becomes P * scale * kPFactor, 0 where masked, and state.zero their sum with the tokens' middles.
template <bool kMasked>
__device__ __forceinline__ void scale_p(State& state, float (&x)[2][4], uint32_t visible, const Slice& slice,
                                        uint32_t lane) {
  const TokenScales of(slice.scales + 4 * kStageTokens, slice.in_stage, lane);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = i / 2;
      const bool masked = kMasked && !(visible >> (4 * h + 2 * n + i % 2) & 1);  // then the scale may be anything
      if constexpr (kIntegers) {
        state.zero[h] += masked ? 0.0f : x[n][i] * (of.zero[n][i % 2] + kMiddle * of.scale[n][i % 2]);
      }
      x[n][i] = masked ? 0.0f : x[n][i] * (of.scale[n][i % 2] * kPFactor);
    }
  }
}

// kMasked: some pair may be masked.
template <bool kMasked>
__device__ __forceinline__ void run_slice(const Work& work, const Row (&rows)[2], const Queries& q, State& state,
                                          const Slice& slice) {
  const uint32_t lane = work.lane;
  // Logits: products, their scales, what the mask and the variant mask.
  float x[2][4];
  multiply_keys(q, slice, lane, x);
  [[maybe_unused]] float shifts[2][4];  // what the keys' zeros add to logits
  if constexpr (kTokenScales) {
    const TokenScales of(slice.scales, slice.in_stage, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i / 4][i % 4] *= of.scale[i / 4][i % 2];
      if constexpr (kIntegers) shifts[i / 4][i % 4] = of.zero[i / 4][i % 2] * q.sum[i % 4 / 2];
    }
  }
  uint32_t visible = kAllVisible;
  if constexpr (kMasked) visible = visible_pairs(work, rows, slice.token);
  [[maybe_unused]] const VariantParams& params = variant_params(*work.args);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = i / 2;
      float s = x[n][i] * q.scale[kScaleRows ? h : 0];
      if constexpr (kIntegers) s += shifts[n][i];
      if constexpr (Variant::kHasLogit || Variant::kHasVisible) {
        fovea::variant::LogitPlace<float> place{};
        place.q_pos = static_cast<float>(rows[h].position);
        place.q_head = static_cast<int>(rows[h].q_head);
        place.kv_head = static_cast<int>(work.record->head);
        const uint32_t token = slice_token(slice.token, n, i % 2, lane);
        if (token >= work.begin && token < work.end) {
          place.kv_pos = static_cast<float>(token_position(*work.args, work.record->block_row, token));
        }
        s = variant_logit(params, s, place, 4 * h + 2 * n + i % 2, visible);
      }
      if constexpr (kMasked || Variant::kHasVisible) {
        if (!(visible >> (4 * h + 2 * n + i % 2) & 1)) s = kMinusInf;
      }
      x[n][i] = s;
    }
  }
  // P.
  if constexpr (Variant::kSoftmax) {
    float shift[2];
    raise(
        state, [&](int h) { return fmaxf(fmaxf(x[0][2 * h], x[0][2 * h + 1]), fmaxf(x[1][2 * h], x[1][2 * h + 1])); },
        shift);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = ptx::exp2_approx(x[n][i] - shift[i / 2]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += (x[0][2 * h] + x[0][2 * h + 1]) + (x[1][2 * h] + x[1][2 * h + 1]);
    }
  } else {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float w = Variant::template weight<fovea::variant::ScalarMath>(params, x[n][i]);
        x[n][i] = visible >> (4 * (i / 2) + 2 * n + i % 2) & 1 ? w : 0.0f;
      }
    }
  }
  constexpr bool kSomeMasked = kMasked || Variant::kHasVisible;
  if constexpr (kTokenScales) scale_p<kSomeMasked>(state, x, visible, slice, lane);
  const uint32_t p[4] = {ptx::pack2<kMmaBf16>(x[0][0], x[0][1]), ptx::pack2<kMmaBf16>(x[0][2], x[0][3]),
                         ptx::pack2<kMmaBf16>(x[1][0], x[1][1]), ptx::pack2<kMmaBf16>(x[1][2], x[1][3])};
  // Their products with values.
  uint32_t tokens = 0;
  // Integers are finite: a P of 0 masks them.
  constexpr bool kSomeInfinite = kSomeMasked && !kIntegers;
  if constexpr (kSomeInfinite) {
    tokens = tokens_to_multiply(rows, visible, p, state, slice, lane);
  }
  if constexpr (kIntegers) ptx::mma_16816<false>(state.p_sums, p, kTwoOnes, kTwoOnes);
  multiply_values<kSomeInfinite>(state, p, slice, lane, tokens);
}

// Applies the key and value hooks to the 16 tokens of a slice, in place. By the one warp that works on the slice.
__device__ __forceinline__ void transform_slice(const Work& work, const Slice& slice, uint8_t* k_tile, uint8_t* v_tile,
                                                float* scratch) {
  if constexpr (kTransformsKv) {
    const VariantParams& params = variant_params(*work.args);
    for (uint32_t t = 0; t < kSliceTokens; ++t) {
      const uint32_t token = slice.token + t;
      if (token < work.begin || token >= work.end) continue;
      const fovea::variant::RowPlace place{token_position(*work.args, work.record->block_row, token),
                                           static_cast<int>(work.record->head), kHeadDim};
      const auto element = [&](uint8_t* tile, uint32_t d) -> uint16_t& {
        return reinterpret_cast<uint16_t*>(tile + StageTile::chunk(slice.in_stage + t, d / 8))[d % 8];
      };
      const auto transform = [&](uint8_t* tile, const auto& hook) {
        __syncwarp();
        for (uint32_t d = work.lane; d < kHeadDim; d += 32) scratch[d] = ptx::unpack_low<kMmaBf16>(element(tile, d));
        __syncwarp();
        for (uint32_t d = work.lane; d < kHeadDim; d += 32) {
          element(tile, d) = static_cast<uint16_t>(ptx::pack2<kMmaBf16>(hook(static_cast<int>(d)), 0.0f));
        }
      };
      if constexpr (Variant::kHasKey) {
        transform(k_tile, [&](int d) { return Variant::key(params, scratch, d, place); });
      }
      if constexpr (Variant::kHasValue) {
        transform(v_tile, [&](int d) { return Variant::value(params, scratch, d, place); });
      }
    }
    ptx::fence_before_async_copies();
    __syncwarp();
  }
}

}  // namespace fovea::attention
