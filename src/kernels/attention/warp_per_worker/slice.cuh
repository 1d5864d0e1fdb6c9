// One warp's arithmetic: blocks of 8 rows (query heads of one token, or of several) against 16 tokens, transposed, so
// that tokens fill the 16 rows of a product and query rows its 8 columns: S^T = K Q^T, O^T = V^T P^T. For up to 8 rows
// half the products and accumulators of the general kernel's tile; P needs two `movmatrix` to become the second
// product's operand.
//
// Lane l, r = l / 4, c = l % 4: logits (token r or r + 8, row 2c or 2c + 1 of a block); outputs (dim r or r + 8 of a
// block, row 2c or 2c + 1), for KV of a byte (dim 2r or 2r + 1), for int4 (of two blocks: 4r or 4r + 1, and 4r + 2 or
// 4r + 3).
#pragma once

#include "kernels/attention/warp_per_worker/tile.cuh"

namespace fovea::attention::warp_per_worker {

// What P is multiplied by: with a scale a token, see kPFactor.
inline constexpr float kFactor = kTokenScales ? kPFactor : 1.0f;
inline constexpr float kLogFactor = !kTokenScales ? 0.0f : kInt4 ? 2.0f : 6.0f;
static_assert(kFactor == static_cast<float>(1 << static_cast<int>(kLogFactor)));

// Of a block of 8 rows.
struct BlockState {
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
using State = BlockState[kRowBlocks];

// What the warp works on: rows of one KV head. Those of the lane are 8 block + 2c and the next.
struct Place {
  const ItemRecord* record;
  uint32_t begin;  // tokens of the run that some row sees
  uint32_t end;
  float scale[kRowBlocks][2];  // of the logits of the lane's rows
  // Integers: see Queries, of the same rows.
  float sum[kIntegers ? kRowBlocks : 1][2];
  float bias[kIntegers ? kRowBlocks : 1][2];
  // Drafts: which tokens all rows see; of the others a row sees those below its end and not more than span before it.
  uint32_t all_begin, all_end, span;
  uint32_t row_end[kDrafts ? kRowBlocks : 1][2];
  int32_t q_pos[kDrafts ? kRowBlocks : 1][2];  // for hooks
  uint32_t q_head[kDrafts ? kRowBlocks : 1][2];

  __device__ __forceinline__ bool sees(uint32_t token) const { return token >= begin && token < end; }
  __device__ __forceinline__ bool all_see(uint32_t first, uint32_t tokens) const {
    if constexpr (!kDrafts) return first >= begin && first + tokens <= end;
    return first >= all_begin && first + tokens <= all_end;
  }
  // Row i of the lane in a block.
  __device__ __forceinline__ bool sees(uint32_t token, int block, int i) const {
    if constexpr (!kDrafts) return sees(token);
    return sees(token) && token < row_end[block][i] && token + span >= row_end[block][i];
  }
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
  float x[kRowBlocks][4];
  uint32_t visible[kRowBlocks];  // bit i: x[..][i] is of a token that the row sees
  SliceScales scales;
};

__device__ __forceinline__ void multiply_keys(const Queries& q, const Place& place, uint32_t tile, uint32_t lane,
                                              float (&logits)[kRowBlocks][4]) {
  float odd[4];  // of one block alone, whose products would wait for each other
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) logits[j][i] = kIntegers ? place.bias[kIntegers ? j : 0][i % 2] : 0.0f;
    odd[i] = 0.0f;
  }
  const auto product = [&]<int b>(const uint32_t(&k)[4]) {
    uint32_t a[4];
    q.get<b>(a);
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      ptx::mma_16816<kMmaBf16>(kRowBlocks > 1 || b % 2 == 0 ? logits[j] : odd, k, a[j], a[2 + j]);
    }
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
  if constexpr (kRowBlocks == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) logits[0][i] += odd[i];
  }
}

// Drafts: the product would carry an infinite or NaN value of a token to rows that do not see it. Adds such tokens to
// those that do, one by one, and says which they are, as bits of the slice (see kernels/attention/visible.cuh).
__device__ __forceinline__ uint32_t add_leaking_tokens(State& state, const uint32_t (&p)[kRowBlocks][2], uint32_t tile,
                                                       const Place& place, uint32_t token, uint32_t lane) {
  const uint32_t own = token + lane;
  const uint32_t divided = __ballot_sync(~0u, lane < kTokens && place.sees(own) && !place.all_see(own, 1));
  if (divided == 0) return 0;
  const uint32_t leaking = divided & not_finite_tokens<SliceTile>(tile, 0, lane);
#pragma unroll 1
  for (uint32_t left = leaking; left != 0; left &= left - 1) {
    const uint32_t t = static_cast<uint32_t>(__ffs(static_cast<int>(left))) - 1;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t holder = (2 * (lane & 3) + i) * 4 + t % 8 / 2;
        const uint32_t pair = __shfl_sync(~0u, t < 8 ? p[j][0] : p[j][1], holder);
        if (!place.sees(token + t, j, i)) continue;
        const float weight = t % 2 == 0 ? ptx::unpack_low<kMmaBf16>(pair) : ptx::unpack_high<kMmaBf16>(pair);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (uint32_t h = 0; h < 2; ++h) {
            const uint32_t dim = b * 16 + (kNarrow ? 2 * (lane >> 2) + h : (lane >> 2) + 8 * h);
            const float2 v = value_pair<SliceTile>(tile, t, dim & ~1u);
            state[j].o[b][2 * h + i] += weight * (dim % 2 == 0 ? v.x : v.y);
          }
        }
      }
    }
  }
  __syncwarp();
  return leaking;
}

// state.o += V^T P. Tokens that no row sees may hold anything, NaN too. token: the slice's first; kWhole: all rows see
// all of it.
template <bool kWhole>
__device__ __forceinline__ void multiply_values(State& state, const uint32_t (&p)[kRowBlocks][2], uint32_t tile,
                                                const Place& place, uint32_t token, uint32_t lane) {
  uint32_t leaking = 0;
  if constexpr (kDrafts && !kIntegers && !kWhole) {
    if (!place.all_see(token, kTokens)) leaking = add_leaking_tokens(state, p, tile, place, token, lane);
  }
  uint32_t keep[2] = {~0u, ~0u};
#pragma unroll
  for (uint32_t i = 0; i < 2 && !kWhole; ++i) {
    const uint32_t in_slice = 8 * i + 2 * (lane & 3), first = token + in_slice;
    keep[i] = (place.sees(first) && !(leaking >> in_slice & 1) ? 0xffffu : 0u) |
              (place.sees(first + 1) && !(leaking >> in_slice & 2) ? 0xffff0000u : 0u);
  }
  const auto product = [&](int b, const uint32_t(&v)[4]) {
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) ptx::mma_16816<kMmaBf16>(state[j].o[b], v, p[j][0], p[j][1]);
  };
  if constexpr (!kNarrow) {
    for_chunk_pairs<SliceTile, Order::kChunks, true>(tile, 0, lane, [&]<int b>(uint32_t(&v)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] &= keep[i / 2];
      product(b, v);
    });
  } else {
    // A register holds two (int4: four) dims of two tokens; rows 0 to 7 of the product get the even dims, the others
    // the odd ones. Integers are finite: a P of 0 masks them.
    if constexpr (kIntegers) {
      const uint32_t ones[4] = {kTwoOnes, kTwoOnes, kTwoOnes, kTwoOnes};
#pragma unroll
      for (int j = 0; j < kRowBlocks; ++j) ptx::mma_16816<false>(state[j].p_sums, ones, p[j][0], p[j][1]);
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
// masked tokens 0. whole: all rows see all of the slice's tokens, from `token` on.
__device__ __forceinline__ void finish_logits(const abi::AttentionArgs& args, const Place& place, uint32_t token,
                                              bool whole, uint32_t group, uint32_t lane, Logits& logits) {
  [[maybe_unused]] const VariantParams& params = variant_params(args);
#pragma unroll
  for (int j = 0; j < kRowBlocks; ++j) {
    float(&x)[4] = logits.x[j];
    uint32_t& visible = logits.visible[j];
    visible = 0xf;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = token + lane / 4 + 8 * (i / 2);
      float s;
      if constexpr (kTokenScales) {
        const uint32_t word = logits.scales.of[i / 2].x;
        s = x[i] * (place.scale[j][i % 2] * ptx::unpack_low<false>(word));
        if constexpr (kIntegers) s += ptx::unpack_high<false>(word) * place.sum[j][i % 2];
      } else {
        s = x[i] * place.scale[j][i % 2];
      }
      if constexpr (Variant::kHasLogit || Variant::kHasVisible) {
        fovea::variant::LogitPlace<float> where{};
        if constexpr (kDrafts) {
          where.q_pos = static_cast<float>(place.q_pos[j][i % 2]);
          where.q_head = static_cast<int>(place.q_head[j][i % 2]);
        } else {
          where.q_pos = static_cast<float>(place.record->positions[0]);
          where.q_head = static_cast<int>(place.record->head * group + min(2 * (lane & 3) + i % 2, group - 1));
        }
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
        const uint32_t at = token + lane / 4 + 8 * (i / 2);
        if (!place.sees(at, j, i % 2)) visible &= ~(1u << i);
        if (!(visible >> i & 1)) x[i] = kMinusInf;
      }
    }
  }
  if (Variant::kHasVisible || !whole) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!place.sees(token + lane / 4 + 8 * h)) logits.scales.of[h].y = 0;
    }
  }
}

// P of the slices as the second product's operand; brings the state up to them.
template <int kSlices>
__device__ __forceinline__ void softmax(const abi::AttentionArgs& args, State& state, Logits (&slices)[kSlices],
                                        uint32_t (&p)[kSlices][kRowBlocks][2]) {
  if constexpr (Variant::kSoftmax) {
    float most[kRowBlocks][2];
    bool rises = false;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      most[j][0] = most[j][1] = kMinusInf;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most[j][i % 2] = fmaxf(most[j][i % 2], slices[s].x[j][i]);
      }
      rises |= most[j][0] > state[j].max[0] || most[j][1] > state[j].max[1];
    }
    if (__any_sync(~0u, rises)) {
#pragma unroll
      for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float now = fmaxf(state[j].max[i], row_max<BlockState>(most[j][i]));
          const float alpha = now == kMinusInf ? 1.0f : ptx::exp2_approx(state[j].max[i] - now);
          state[j].max[i] = now;
          state[j].shift[i] = now == kMinusInf ? 0.0f : now - kLogFactor;
          rescale(state[j], i, alpha);
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      float(&x)[4] = slices[s].x[j];
      BlockState& rows = state[j];
      [[maybe_unused]] const uint32_t visible = slices[s].visible[j];
      if constexpr (Variant::kSoftmax) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float most = rows.max[i % 2] == kMinusInf ? 0.0f : rows.max[i % 2];
          x[i] = ptx::exp2_approx(x[i] - (kTokenScales ? rows.shift[i % 2] : most));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) rows.sum[i] += x[i] + x[i + 2];
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
          // Then the scale may be anything.
          const bool masked = (Variant::kHasVisible || kDrafts) && !(visible >> i & 1);
          const float scale = ptx::unpack_low<false>(word);
          if constexpr (kIntegers) {
            rows.zero[i % 2] += masked ? 0.0f : x[i] * (ptx::unpack_high<false>(word) + kMiddle * scale);
          }
          x[i] = masked ? 0.0f : x[i] * scale;
        }
      }
      p[s][j][0] = ptx::movmatrix_trans(ptx::pack2<kMmaBf16>(x[0], x[1]));
      p[s][j][1] = ptx::movmatrix_trans(ptx::pack2<kMmaBf16>(x[2], x[3]));
    }
  }
}

}  // namespace fovea::attention::warp_per_worker
