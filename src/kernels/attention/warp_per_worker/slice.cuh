// One warp's arithmetic: up to 8 rows (query heads of one token) against 16 tokens, transposed, so that tokens fill the
// 16 rows of a product and query rows its 8 columns: S^T = K Q^T, O^T = V^T P^T. Half the products and accumulators of
// the decode kernel's tile, and P needs two `movmatrix` to become the second product's operand.
//
// Lane l, r = l / 4, c = l % 4: logits (token r or r + 8, row 2c or 2c + 1); outputs (dim r or r + 8 of a block, row 2c
// or 2c + 1), for KV of a byte (dim 2r or 2r + 1), for int4 (of two blocks: 4r or 4r + 1, and 4r + 2 or 4r + 3).
#pragma once

#include "kernels/attention/warp_per_worker/tile.cuh"

namespace fovea::attention::warp_per_worker {

// What P is multiplied by: with a scale a token, see kPFactor.
inline constexpr float kFactor = kTokenScales ? kPFactor : 1.0f;
inline constexpr float kLogFactor = !kTokenScales ? 0.0f : kInt4 ? 2.0f : 6.0f;
static_assert(kFactor == static_cast<float>(1 << static_cast<int>(kLogFactor)));

struct State {
  float o[kBlocks][4];
  float max[2];    // of rows 2c and 2c + 1 so far, so that the P of a row's greatest logit is exactly kFactor
  float shift[2];  // with a scale a token: what logits lose before they become P
  float sum[2];    // of this lane's tokens only, until finish_sums()
  float zero[kIntegers ? 2 : 1];  // sums of P * middle (kMiddle), as sum
  float p_sums[4];                // integers: sums of P that values were multiplied by; rows as in o

  // As in the other State (kernels/attention/state.cuh).
  static constexpr uint32_t kFirstLane = 4, kLastLane = 16;
  static constexpr float kZeroFactor = kFactor;
  static constexpr int kPerRow = kBlocks * 2, kOddBit = 1;
  __device__ __forceinline__ float& at(int j, int i) { return o[i / 2][i % 2 * 2 + j]; }
  __device__ __forceinline__ float& p_sum(int j, int i) { return p_sums[2 * i + j]; }
};

// What the warp works on: one query token, the rows of one KV head.
struct Place {
  const ItemRecord* record;
  uint32_t begin;  // visible tokens of the run
  uint32_t end;
  float scale[2];  // of the logits of rows 2c and 2c + 1
  // Integers: see Queries, of the same rows.
  float sum[kIntegers ? 2 : 1];
  float bias[kIntegers ? 2 : 1];

  __device__ __forceinline__ bool sees(uint32_t token) const { return token >= begin && token < end; }
};

// abi::KvScale of the lane's tokens r and r + 8 of a slice, of K and of V.
struct SliceScales {
  uint2 of[2];

  // address: of the slice's first token.
  __device__ __forceinline__ void load(uint32_t address, uint32_t lane) {
    of[0] = ptx::load_shared_8(address + lane / 4 * 8);
    of[1] = ptx::load_shared_8(address + lane / 4 * 8 + 64);
  }
};

// What a lane has of a slice between the products.
struct Logits {
  float x[4];
  uint32_t visible;  // bit i: x[i] is of a token that the query sees
  SliceScales scales;
};

__device__ __forceinline__ void multiply_keys(const Queries& q, const Place& place, uint32_t tile, uint32_t lane,
                                              float (&logits)[4]) {
  float odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    logits[i] = kIntegers ? place.bias[kIntegers ? i % 2 : 0] : 0.0f;
    odd[i] = 0.0f;
  }
  const auto product = [&]<int b>(const uint32_t(&k)[4]) {
    uint32_t a[4];
    q.get<b>(a);
    ptx::mma_16816<kMmaBf16>(b % 2 == 0 ? logits : odd, k, a[0], a[2]);
  };
  if constexpr (!kNarrow) {
    for_chunk_pairs<SliceTile, Order::kTokens, false>(tile, 0, lane, product);
  } else {
    // A register has four (int4: eight) neighbouring dims of a token; the query's dims are permuted to match
    // (rows.cuh). A chunk is a block of dims, or two.
    for_chunks<SliceTile, Order::kTokens, false>(tile, 0, lane, [&]<int c>(uint32_t low_tokens, uint32_t high_tokens) {
      if constexpr (kInt4) {
        product.template operator()<2 * c>(
            {ptx::codes_of_half_bytes<0>(low_tokens), ptx::codes_of_half_bytes<0>(high_tokens),
             ptx::codes_of_half_bytes<1>(low_tokens), ptx::codes_of_half_bytes<1>(high_tokens)});
        product.template operator()<2 * c + 1>(
            {ptx::codes_of_half_bytes<2>(low_tokens), ptx::codes_of_half_bytes<2>(high_tokens),
             ptx::codes_of_half_bytes<3>(low_tokens), ptx::codes_of_half_bytes<3>(high_tokens)});
      } else {
        uint32_t k[4];
        key_operands(low_tokens, k[0], k[2]);
        key_operands(high_tokens, k[1], k[3]);
        product.template operator()<c>(k);
      }
    });
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] += odd[i];
}

// state.o += V^T P. Tokens outside of [begin, end) may hold anything, NaN too. token: the slice's first.
__device__ __forceinline__ void multiply_values(State& state, const uint32_t (&p)[2], uint32_t tile, const Place& place,
                                                uint32_t token, uint32_t lane) {
  uint32_t keep[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t first = token + 8 * i + 2 * (lane & 3);
    keep[i] = (place.sees(first) ? 0xffffu : 0u) | (place.sees(first + 1) ? 0xffff0000u : 0u);
  }
  if constexpr (!kNarrow) {
    for_chunk_pairs<SliceTile, Order::kChunks, true>(tile, 0, lane, [&]<int b>(uint32_t(&v)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] &= keep[i / 2];
      ptx::mma_16816<kMmaBf16>(state.o[b], v, p[0], p[1]);
    });
  } else {
    // A register holds two (int4: four) dims of two tokens; rows 0 to 7 of the product get the even dims, the others
    // the odd ones. Integers are finite: a P of 0 masks them.
    const auto product = [&](int b, const uint32_t(&v)[4]) { ptx::mma_16816<kMmaBf16>(state.o[b], v, p[0], p[1]); };
    if constexpr (kIntegers) {
      const uint32_t ones[4] = {kTwoOnes, kTwoOnes, kTwoOnes, kTwoOnes};
      ptx::mma_16816<false>(state.p_sums, ones, p[0], p[1]);
    }
    for_chunks<SliceTile, Order::kTokens, true>(tile, 0, lane, [&]<int c>(uint32_t first, uint32_t second) {
      if constexpr (kInt4) {
        product(2 * c, {ptx::codes_of_half_bytes<0>(first), ptx::codes_of_half_bytes<1>(first),
                        ptx::codes_of_half_bytes<0>(second), ptx::codes_of_half_bytes<1>(second)});
        product(2 * c + 1, {ptx::codes_of_half_bytes<2>(first), ptx::codes_of_half_bytes<3>(first),
                            ptx::codes_of_half_bytes<2>(second), ptx::codes_of_half_bytes<3>(second)});
      } else if constexpr (kInt8) {
        product(c, {ptx::codes_of_even_bytes(first), ptx::codes_of_odd_bytes(first), ptx::codes_of_even_bytes(second),
                    ptx::codes_of_odd_bytes(second)});
      } else {
        first &= keep[0];
        second &= keep[1];
        uint32_t v[4];
        ptx::halves_of_e4m3(__byte_perm(first, second, 0x6420), v[0], v[2]);
        ptx::halves_of_e4m3(__byte_perm(first, second, 0x7531), v[1], v[3]);
        product(c, v);
      }
    });
  }
}

// Logits of the slice as softmax takes them: scaled, through the variant, masked ones -inf, and the scales of values of
// masked tokens 0. whole: the query sees all of the slice's tokens, from `token` on.
__device__ __forceinline__ void finish_logits(const abi::AttentionArgs& args, const Place& place, uint32_t token,
                                              bool whole, uint32_t group, uint32_t lane, Logits& logits) {
  [[maybe_unused]] const VariantParams& params = variant_params(args);
  float(&x)[4] = logits.x;
  uint32_t& visible = logits.visible;
  visible = 0xf;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = token + lane / 4 + 8 * (i / 2);
    float s;
    if constexpr (kTokenScales) {
      const uint32_t word = logits.scales.of[i / 2].x;
      s = x[i] * (place.scale[i % 2] * ptx::unpack_low<false>(word));
      if constexpr (kIntegers) s += ptx::unpack_high<false>(word) * place.sum[i % 2];
    } else {
      s = x[i] * place.scale[i % 2];
    }
    if constexpr (Variant::kHasLogit || Variant::kHasVisible) {
      fovea::variant::LogitPlace<float> where{};
      where.q_pos = static_cast<float>(place.record->positions[0]);
      where.q_head = static_cast<int>(place.record->head * group + min(2 * (lane & 3) + i % 2, group - 1));
      where.kv_head = static_cast<int>(place.record->head);
      if (whole || place.sees(at))
        where.kv_pos = static_cast<float>(place.record->block_row.position_base + static_cast<int32_t>(at));
      s = variant_logit(params, s, where, i, visible);
    }
    x[i] = s;
  }
  if (Variant::kHasVisible || !whole) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!place.sees(token + lane / 4 + 8 * (i / 2))) {
        visible &= ~(1u << i);
        logits.scales.of[i / 2].y = 0;
      }
      if (!(visible >> i & 1)) x[i] = kMinusInf;
    }
  }
}

// P of the slices as the second product's operand; brings the state up to them.
__device__ __forceinline__ void softmax(const abi::AttentionArgs& args, State& state, Logits (&slices)[kSlotSlices],
                                        uint32_t (&p)[kSlotSlices][2]) {
  if constexpr (Variant::kSoftmax) {
    float most[2] = {kMinusInf, kMinusInf};
#pragma unroll
    for (int s = 0; s < kSlotSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i % 2] = fmaxf(most[i % 2], slices[s].x[i]);
    }
    if (__any_sync(~0u, most[0] > state.max[0] || most[1] > state.max[1])) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        most[j] = fmaxf(state.max[j], row_max<State>(most[j]));
        const float alpha = most[j] == kMinusInf ? 1.0f : ptx::exp2_approx(state.max[j] - most[j]);
        state.max[j] = most[j];
        state.shift[j] = most[j] == kMinusInf ? 0.0f : most[j] - kLogFactor;
        rescale(state, j, alpha);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSlotSlices; ++s) {
    float(&x)[4] = slices[s].x;
    [[maybe_unused]] const uint32_t visible = slices[s].visible;
    if constexpr (Variant::kSoftmax) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float most = state.max[i % 2] == kMinusInf ? 0.0f : state.max[i % 2];
        x[i] = ptx::exp2_approx(x[i] - (kTokenScales ? state.shift[i % 2] : most));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) state.sum[j] += x[j] + x[j + 2];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float w = Variant::template weight<fovea::variant::ScalarMath>(variant_params(args), x[i]);
        x[i] = visible >> i & 1 ? w * kFactor : 0.0f;
      }
    }
    if constexpr (kTokenScales) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = slices[s].scales.of[i / 2].y;
        const bool masked = Variant::kHasVisible && !(visible >> i & 1);  // then the scale may be anything
        const float scale = ptx::unpack_low<false>(word);
        if constexpr (kIntegers) {
          state.zero[i % 2] += masked ? 0.0f : x[i] * (ptx::unpack_high<false>(word) + kMiddle * scale);
        }
        x[i] = masked ? 0.0f : x[i] * scale;
      }
    }
    p[s][0] = ptx::movmatrix_trans(ptx::pack2<kMmaBf16>(x[0], x[1]));
    p[s][1] = ptx::movmatrix_trans(ptx::pack2<kMmaBf16>(x[2], x[3]));
  }
}

}  // namespace fovea::attention::warp_per_worker
