// Online softmax over the tiles of a warpgroup: logits of a tile, as wgmma leaves them, become weights; maxima and sums
// of the lane's two rows move on. Used by attention.cuh.
#pragma once

#include "kernels/prefill/item.cuh"

namespace fovea::prefill {

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

// Logits that a hook changes: base-2 logits, to be scaled by 1.
__device__ __forceinline__ void change_logits(const abi::AttentionArgs& args, const ItemRecord& record,
                                              const Item& item, const Run& run, uint32_t tile_token,
                                              float (&s)[kLogits], uint32_t lane) {
  if constexpr (Variant::kHasLogit) {
    const VariantParams& params = variant_params(args);
    const abi::BlockRow& block_row = record.block_row;
    const bool list = block_row.positions_begin != abi::kNone;
#pragma unroll
    for (int i = 0; i < kLogits; ++i) {
      const Row& row = item.hooked[i / 2 % 2];
      const uint32_t token = tile_token + i / 4 * 8 + 2 * (lane & 3) + i % 2;
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
  if (item.listed) {
    const ItemRecord& record = record_of(shared, item);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t bits = listed_bits(args, shared, group, record, h, first_token);
#pragma unroll
      for (int i = 0; i < kLogits / 2; ++i) {
        if (!(bits >> i & 1)) s[i / 2 * 4 + 2 * h + i % 2] = kMinusInf;
      }
    }
    return;
  }
  const auto first = static_cast<int32_t>(first_token);
  const int32_t high[2] = {static_cast<int32_t>(item.high[0]) - first, static_cast<int32_t>(item.high[1]) - first};
  const int32_t low[2] = {static_cast<int32_t>(item.low[0]) - first, static_cast<int32_t>(item.low[1]) - first};
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

// Of the lane's rows over the tiles so far. max: in units of the logits as weigh() gets them, what weights are counted
// from; sum: of this lane's tokens.
struct Running {
  float max[2] = {kMinusInf, kMinusInf};
  float sum[2] = {0.0f, 0.0f};
};

// Logits become weights. alpha: what outputs so far are to be multiplied by; returns whether it is not 1 for some row
// of the warp.
__device__ __forceinline__ bool weigh(float (&s)[kLogits], Running& now, float scale, float (&alpha)[2]) {
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
  float top[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) top[h] = fmaxf(fmaxf(chains[h][0], chains[h][1]), fmaxf(chains[h][2], chains[h][3]));
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], step));
  }
  float shift[2];
  bool moved = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // Followed at once: a token that takes all then has a weight of 1, which rounding to 16 bits leaves alone.
    const bool moves = top[h] > now.max[h];
    alpha[h] = moves ? ptx::exp2_approx((now.max[h] - top[h]) * scale) : 1.0f;
    now.max[h] = moves ? top[h] : now.max[h];
    moved |= moves;
    shift[h] = now.max[h] == kMinusInf ? 0.0f : now.max[h] * scale;
  }
  float even[2] = {0.0f, 0.0f};
  float odd[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < kLogits / 4; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& a = s[4 * n + 2 * h];
      float& b = s[4 * n + 2 * h + 1];
      a = ptx::exp2_approx(fmaf(a, scale, -shift[h]));
      b = ptx::exp2_approx(fmaf(b, scale, -shift[h]));
      even[h] += a;
      odd[h] += b;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) now.sum[h] = now.sum[h] * alpha[h] + (even[h] + odd[h]);
  return __any_sync(~0u, moved);
}

// Weights as the A fragments of the second product: 16 tokens a step.
__device__ __forceinline__ void pack_weights(const float (&s)[kLogits], uint32_t (&p)[kBlockTokens / 16][4]) {
#pragma unroll
  for (int step = 0; step < kBlockTokens / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[step][i] = ptx::pack2<kMmaBf16>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
  }
}

__device__ __forceinline__ void scale_outputs(State& state, const float (&alpha)[2]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[b][i / 4][i % 4] *= alpha[i / 2 % 2];
  }
}

}  // namespace fovea::prefill
