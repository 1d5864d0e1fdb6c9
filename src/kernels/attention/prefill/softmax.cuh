// Online softmax over the tiles of a warpgroup: logits of a tile, as wgmma leaves them, become weights; maxima and sums
// of the lane's two rows move on. Used by kernel.cuh.
#pragma once

#include "kernels/attention/prefill/item.cuh"

namespace fovea::attention::prefill {

inline constexpr int kLogits = kBlockTokens / 2;  // a lane's: register 4n + 2h + e is row r + 8h, token 8n + 2c + e

// What the products of a row are multiplied by for base-2 logits; variants with a logit hook get natural ones.
struct LogitScale {
  float factor;
  bool negative;  // of a scale below zero: products change their sign first, because maxima are taken before scaling
};
__device__ __forceinline__ LogitScale find_scale(const abi::AttentionArgs& args) {
  const float scale = variant_params(args).sm_scale * fovea::variant::kLog2e;
  // A scale of 0 times a masked logit would be NaN.
  return {fmaxf(fabsf(scale), 1e-30f), scale < 0.0f};
}

// The factor of the lane's rows r and r + 8. Those that meet converted keys have their own, which stand beside the
// queries: registers are few.
struct RowFactors {
  float factor[kConverts ? 2 : 1];

  __device__ __forceinline__ float of(int h) const { return factor[kConverts ? h : 0]; }
  __device__ __forceinline__ RowFactors here(const Memory& shared, const Group& group) const {
    if constexpr (kConverts) {
      uint32_t lane = group.lane;
      asm volatile("" : "+r"(lane));  // what follows from it would be kept from tile to tile
      const float* const at = &shared.row_scales[group.q_use % kQuerySlots][group.first_row() + lane / 4];
      RowFactors factors;
      factors.factor[0] = at[0];
      factors.factor[kConverts ? 1 : 0] = at[8];
      return factors;
    }
    return *this;
  }
};

// Where there is a hook on logits, it makes base-2 logits of them, to be scaled by 1.
__device__ __forceinline__ void change_logits(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                              const Item& item, uint32_t tile, float (&s)[kLogits]) {
  if constexpr (Variant::kHasLogit) {
    const VariantParams& params = variant_params(args);
    const ItemRecord& record = record_of(shared, item);
    const Run run = run_of(args, record);
    const uint32_t tile_token = token_of(run, tile);
    const abi::BlockRow& block_row = record.block_row;
    const bool list = block_row.positions_begin != abi::kNone;
#pragma unroll
    for (int i = 0; i < kLogits; ++i) {
      const Row& row = item.hooked[i / 2 % 2];
      const uint32_t token = tile_token + i / 4 * 8 + 2 * (group.lane & 3) + i % 2;
      fovea::variant::LogitPlace<float> place{};
      place.q_pos = static_cast<float>(row.position);
      place.q_head = static_cast<int>(row.q_head);
      place.kv_head = static_cast<int>(record.head);
      place.kv_pos = static_cast<float>(block_row.position_base + static_cast<int32_t>(token));
      if (list && token >= run.begin && token < run.end) {
        place.kv_pos = static_cast<float>(token_position(args, block_row, token));
      }
      s[i] = Variant::template logit<fovea::variant::ScalarMath>(params, s[i] * params.sm_scale, place) *
             fovea::variant::kLog2e;
    }
  }
}

// Which logits of the lane's row h are seen, where that stands in bits or positions stand in a list: bit 2n + e.
__device__ __forceinline__ uint32_t listed_bits(const abi::AttentionArgs& args, const Memory& shared,
                                                const Group& group, const ItemRecord& record, uint32_t h,
                                                uint32_t first_token) {
  const uint32_t q_token = shared.places[group.thread()].token[h];
  if (q_token >= record.item.row_count) return 0;
  const abi::BlockRow& block_row = record.block_row;
  const uint32_t at = record.item.row_begin + q_token;
  const Run run = run_of(args, record);
  const bool bit_mask = block_row.mask == abi::MaskKind::kBits;
  int32_t last = 0;  // position seen
  int32_t left = 0x7fffffff;
  uint64_t first_bit = 0;
  if (bit_mask) {
    first_bit = block_row.mask_offset + static_cast<uint64_t>(at - block_row.row_begin) * block_row.mask_stride;
  } else {
    const abi::DevicePlanHeader* const header = header_here(args);
    last = reinterpret_cast<const int32_t*>(reinterpret_cast<const uint8_t*>(header) + header->q_pos)[at];
    if (block_row.mask == abi::MaskKind::kWindow && block_row.window_left >= 0) left = block_row.window_left;
  }
  uint32_t bits = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < kLogits / 2; ++i) {
    const uint32_t token = first_token + i / 2 * 8 + i % 2;
    if (token < run.begin || token >= run.end) continue;
    bool sees;
    if (bit_mask) {
      const uint64_t bit = first_bit + token;
      sees = args.mask_bits[bit >> 3] >> (bit & 7) & 1;
    } else {
      const int32_t position = token_position(args, block_row, token);
      sees = position <= last && static_cast<long long>(position) >= static_cast<long long>(last) - left;
    }
    if (sees) bits |= 1u << i;
  }
  return bits;
}

// Hides what the rows do not see of a tile.
__device__ __forceinline__ void hide(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                     const Item& item, uint32_t tile_token, float (&s)[kLogits]) {
  const uint32_t first_token = tile_token + 2 * (group.lane & 3);
  if (item.flags & kListed) {
    const ItemRecord& record = record_of(shared, item);
    uint32_t bits[2] = {0, 0};
#pragma unroll 1
    for (uint32_t h = 0; h < 2; ++h) {
      bits[0] = bits[1];
      bits[1] = listed_bits(args, shared, group, record, h, first_token);
    }
#pragma unroll
    for (int i = 0; i < kLogits; ++i) {
      if (!(bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1)) s[i] = kMinusInf;
    }
    return;
  }
  const auto first = static_cast<int32_t>(first_token);
  const Places& places = shared.places[group.thread()];
  const int32_t high[2] = {static_cast<int32_t>(places.high[0]) - first, static_cast<int32_t>(places.high[1]) - first};
  const int32_t low[2] = {static_cast<int32_t>(places.low[0]) - first, static_cast<int32_t>(places.low[1]) - first};
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    if (i / 4 * 8 + i % 2 >= high[i / 2 % 2]) s[i] = kMinusInf;
  }
  if (max(low[0], low[1]) <= 0) return;
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    if (i / 4 * 8 + i % 2 < low[i / 2 % 2]) s[i] = kMinusInf;
  }
}

// Weights of a tile as the A fragments of the second product, 16 tokens a step.
using Weights = uint32_t[kBlockTokens / 16][4];

// The largest weight may be two to the minus this, no less: halves end at 2^-24.
inline constexpr float kMostHeadroom = kMmaBf16 ? 16.0f : 3.0f;

// Of the lane's rows over the tiles so far.
struct Running {
  // What logits times the scale are less by as exponents of weights; 0 until a token was seen, and then never.
  float shift[2] = {0.0f, 0.0f};
  float sum[2] = {0.0f, 0.0f};  // of this lane's tokens
  bool settled = false;         // no row of the warp waits for the first token that it sees
};

// Logits become exponents of weights. Returns whether all of the warp are below zero, as they have to be; those of rows
// that nobody asked for may be anything.
__device__ __forceinline__ bool find_exponents(float (&s)[kLogits], const Running& now, bool idle,
                                               const RowFactors& scale) {
  uint32_t signs = ~0u;
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] = fmaf(s[i], scale.of(i / 2 % 2), -now.shift[i / 2 % 2]);
    signs &= __float_as_uint(s[i]);
  }
  return __all_sync(~0u, idle || signs >> 31);
}

// Counts weights so that one that is more than all before it together, by then, is a power of two and no less than one:
// nearly all of the output shows what rounding does to it. Smaller ones may be larger than any before, for which
// products do not wait. s: exponents of weights, or (kWeights) weights, none of them infinite. alpha: what sums and
// outputs of the tiles before are to be multiplied by.
template <bool kWeights>
__device__ __forceinline__ void raise(float (&s)[kLogits], const Places& places, Running& now, float (&alpha)[2]) {
  // Chains that do not wait for one another, of both rows.
  float chains[2][4];
#pragma unroll
  for (int n = 0; n < kLogits / 4; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& chain = chains[h][n % 2 * 2 + e];
        chain = n < 2 ? s[4 * n + 2 * h + e] : fmaxf(chain, s[4 * n + 2 * h + e]);
      }
    }
  }
  float lift[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = fmaxf(fmaxf(chains[h][0], chains[h][1]), fmaxf(chains[h][2], chains[h][3]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if constexpr (kWeights) top = log2f(top);
    const bool seen = now.shift[h] != 0.0f;
    float sum = now.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float before = ptx::log2_approx(sum);  // -infinity of nothing
    const bool lifts = seen ? top >= 0.0f : top != kMinusInf;
    const float headroom = fminf(fmaxf(floorf(lifts ? before - top : before), lifts ? 1.0f : 0.0f), kMostHeadroom);
    lift[h] = lifts ? top + headroom : kMmaBf16 ? headroom : 0.0f;
    alpha[h] = seen ? ptx::exp2_approx(-lift[h]) : 1.0f;
    now.shift[h] += lift[h];
    if (lifts && now.shift[h] == 0.0f) now.shift[h] = 1e-30f;
    now.sum[h] *= alpha[h];
  }
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    if constexpr (kWeights) {
      s[i] *= alpha[i / 2 % 2];
    } else {
      s[i] -= lift[i / 2 % 2];
    }
  }
  const auto settled = [&](int h) { return now.shift[h] != 0.0f || places.high[h] <= places.low[h]; };
  now.settled = __all_sync(~0u, settled(0) && settled(1));
}

__device__ __forceinline__ void pack_weights(const float (&s)[kLogits], Weights& p) {
#pragma unroll
  for (int step = 0; step < kBlockTokens / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[step][i] = ptx::pack2<kMmaBf16>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
  }
}

// Exponents become weights, whose sums are added.
__device__ __forceinline__ void weigh(float (&s)[kLogits], Running& now) {
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] = ptx::exp2_approx(s[i]);
    now.sum[i / 2 % 2] += s[i];
  }
}

// Behind raise(), once the tile is in the sums: weights become as small as lets the next tiles' lie below one, by
// powers of two. A token that is accepted then weighs no more than all before it. Halves have no room for that.
__device__ __forceinline__ void make_room(float (&s)[kLogits], Running& now, float (&alpha)[2]) {
  if constexpr (!kMmaBf16) return;
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = now.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float room = fminf(fmaxf(floorf(ptx::log2_approx(sum)), 0.0f), kMostHeadroom);
    factor[h] = ptx::exp2_approx(-room);
    now.shift[h] += room;
    if (room != 0.0f && now.shift[h] == 0.0f) now.shift[h] = 1e-30f;
    now.sum[h] *= factor[h];
    alpha[h] *= factor[h];
  }
#pragma unroll
  for (int i = 0; i < kLogits; ++i) s[i] *= factor[i / 2 % 2];
}

// Logits become weights, counted from what the tiles before were counted from. Returns whether all of the warp are
// below one: only then were they added to the sums. A lane's sums being below one says so. Halves have no room for
// weights as small as that takes: their sums are larger, and a maximum says it.
__device__ __forceinline__ bool weigh_at_once(float (&s)[kLogits], Running& now, bool idle, const RowFactors& scale) {
  float sum[2] = {0.0f, 0.0f};
  float most[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] = ptx::exp2_approx(fmaf(s[i], scale.of(i / 2 % 2), -now.shift[i / 2 % 2]));
    sum[i / 2 % 2] += s[i];
    if constexpr (!kMmaBf16) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
  }
  const bool below = kMmaBf16 ? sum[0] < 1.0f && sum[1] < 1.0f : most[0] < 1.0f && most[1] < 1.0f;
  if (!__all_sync(~0u, idle || below)) return false;
  now.sum[0] += sum[0];
  now.sum[1] += sum[1];
  return true;
}

__device__ __forceinline__ void scale_outputs(State& state, const float (&alpha)[2]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] *= alpha[i / 2 % 2];
  }
}

}  // namespace fovea::attention::prefill
