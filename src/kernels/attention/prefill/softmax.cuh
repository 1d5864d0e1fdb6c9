// Online softmax over the tiles of a warpgroup: logits of a tile, as wgmma leaves them, become P; references and sums
// of the lane's two rows move on. Used by kernel.cuh, and what it finds of rows by merge.cuh.
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
inline constexpr bool kOwnFactors = kConverts && !Variant::kHasLogit;  // hooks apply them
struct RowFactors {
  float factor[kConverts ? 2 : 1];

  __device__ __forceinline__ float of(int h) const { return factor[kOwnFactors ? h : 0]; }
  __device__ __forceinline__ static RowFactors of_rows(const Memory& shared, const Group& group) {
    uint32_t lane = group.lane;
    asm volatile("" : "+r"(lane));  // what follows from it would be kept from tile to tile
    const float* const at = &shared.row_scales[group.q_use % kQuerySlots][group.first_row() + lane / 4];
    RowFactors factors;
    factors.factor[0] = at[0];
    factors.factor[kConverts ? 1 : 0] = at[8];
    return factors;
  }
  __device__ __forceinline__ RowFactors here(const Memory& shared, const Group& group) const {
    if constexpr (kOwnFactors) return of_rows(shared, group);
    return *this;
  }
};

// Scales and zeros of a tile's keys, as a lane's logits meet them. Those of the first columns can be on their way while
// something else is waited for.
class KeyScales {
 public:
  __device__ __forceinline__ KeyScales(const Memory& shared, const Group& group) : shared_(shared), group_(group) {
    if constexpr (kPoolScales) {
      uint32_t lane = group.lane;
      asm volatile("" : "+r"(lane));  // what follows from it would be kept from tile to tile
      at_ = ptx::smem_address(shared.key_scales[(group.k_use - group.step()) % kScaleSlots]) + lane % 4 * 16;
#pragma unroll
      for (int n = 0; n < kAhead; ++n) ptx::load_shared_16(ahead_[n], at_ + n * 64);
    }
  }

  // Products with keys as they are stored become those with the keys: scale * product + zero * sum of the row.
  __device__ __forceinline__ void apply(float (&s)[kLogits]) const {
    if constexpr (kPoolScales) {
      float sums[2] = {0.0f, 0.0f};
      if constexpr (kPoolZeros) {
        const float* const of_rows =
            &shared_.row_sums[group_.q_use % kQuerySlots][group_.first_row() + group_.lane / 4];
        sums[0] = of_rows[0];
        sums[1] = of_rows[8];
      }
#pragma unroll
      for (int first = 0; first < kLogits / 4; first += kAhead) {
        uint32_t words[kAhead][4];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          if (first == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[n][i] = ahead_[n][i];
          } else {
            ptx::load_shared_16(words[n], at_ + (first + n) * 64);
          }
        }
#pragma unroll
        for (int i = 0; i < 4 * kAhead; ++i) {
          float& x = s[4 * first + i];
          x *= __uint_as_float(words[i / 4][i % 2 * 2]);
          if constexpr (kPoolZeros) x = fmaf(__uint_as_float(words[i / 4][i % 2 * 2 + 1]), sums[i / 2 % 2], x);
        }
      }
    }
  }

 private:
  static constexpr int kAhead = 4;
  const Memory& shared_;
  const Group& group_;
  uint32_t at_ = 0;
  uint32_t ahead_[kPoolScales ? kAhead : 1][4];
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
    RowFactors scale;
    if constexpr (kConverts) {
      scale = RowFactors::of_rows(shared, group);
    } else {
      scale.factor[0] = params.sm_scale;
    }
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
      s[i] = Variant::template logit<fovea::variant::ScalarMath>(params, s[i] * scale.factor[kConverts ? i / 2 % 2 : 0],
                                                                 place) *
             fovea::variant::kLog2e;
    }
  }
}

// Which logits of the lane's row h are seen, where that stands in bits or positions stand in a list: bit 2n + e.
__device__ __forceinline__ uint32_t listed_bits(const abi::AttentionArgs& args, const Memory& shared,
                                                const Group& group, const ItemRecord& record, uint32_t h,
                                                uint32_t first_token) {
  const uint32_t q_token = (group.first_row() + group.lane / 4 + 8 * h) / header_here(args)->counts.group;
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

// Logits of tokens that the rows do not see become -infinity.
__device__ __forceinline__ void mask_tile(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                          const Item& item, uint32_t tile_token, float (&s)[kLogits]) {
  const uint32_t first_token = tile_token + 2 * (group.lane & 3);
  const ItemRecord& record = record_of(shared, item);
  if (is_listed(record)) {
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
  const TileRows& rows = rows_here(shared, group);
  const uint32_t row = group.first_row() + group.lane / 4;
  const int32_t high[2] = {static_cast<int32_t>(rows.high[row]) - first,
                           static_cast<int32_t>(rows.high[row + 8]) - first};
  const int32_t low[2] = {static_cast<int32_t>(rows.low[row]) - first, static_cast<int32_t>(rows.low[row + 8]) - first};
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

// P of a tile as the A fragments of the second product, 16 tokens a step.
using Probabilities = uint32_t[kBlockTokens / 16][4];

// P is relative to a reference, the row max when it was found, which later tiles do not wait for. It moves where a
// token outweighs all before it: the P of that one becomes a power of two, because rounding it for the second product
// would show in all of the output. Other P may be of any size; those of halves have to lie in their range, which ends
// at 2^-24 and 2^16.
inline constexpr float kReference = kMmaBf16 ? 0.0f : 4.0f;     // P of the reference, as an exponent of two
inline constexpr float kMostSum = kMmaBf16 ? 1e30f : 16384.0f;  // of a lane's P of a tile

// Of the lane's rows over the tiles so far.
struct Running {
  float shift[2] = {0.0f, 0.0f};  // what exponents of P are less than logits times the scale; 0: no token was seen
  float sum[2] = {0.0f, 0.0f};    // of this lane's tokens
  float limit[2] = {0.0f, 0.0f};  // sums of a lane's tokens of a tile that let none outweigh all before
};

// Behind a new reference: what may come without another.
__device__ __forceinline__ void set_limits(Running& now) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = row_sum<State>(now.sum[h]);
    // A row that sees nothing has no reference to keep.
    now.limit[h] = now.shift[h] != 0.0f ? fminf(sum, kMostSum) : kMostSum;
  }
}

// Of rows that have all seen a token before, without looking at row maxima. Returns whether all may stay as they are:
// only then were they added to the sums.
__device__ __forceinline__ bool exponentiate(float (&s)[kLogits], Running& now, const RowFactors& scale) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] = ptx::exp2_approx(fmaf(s[i], scale.of(i / 2 % 2), -now.shift[i / 2 % 2]));
    sum[i / 2 % 2] += s[i];
  }
  if (!__all_sync(~0u, sum[0] < now.limit[0] && sum[1] < now.limit[1])) return false;
  now.sum[0] += sum[0];
  now.sum[1] += sum[1];
  return true;
}

// Row maxima, over the lanes that share a row.
__device__ __forceinline__ void find_row_max(const float (&s)[kLogits], float (&max)[2]) {
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
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    max[h] = row_max<State>(fmaxf(fmaxf(chains[h][0], chains[h][1]), fmaxf(chains[h][2], chains[h][3])));
  }
}

// Of any rows, hidden logits are -infinity: the reference moves to the row max where that is larger. Returns whether
// one of the warp moved; alpha is what sums already were, and outputs of the tiles before are to be multiplied by.
__device__ __forceinline__ bool exponentiate_below_max(float (&s)[kLogits], Running& now, const RowFactors& scale,
                                                       float (&alpha)[2]) {
  float max[2];
  find_row_max(s, max);
  bool moves = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float shift = max[h] * scale.of(h) - kReference;
    const bool first = now.shift[h] == 0.0f;
    alpha[h] = 1.0f;
    if (first ? max[h] == kMinusInf : !(shift > now.shift[h])) continue;
    if (!first) alpha[h] = ptx::exp2_approx(now.shift[h] - shift);
    now.shift[h] = shift != 0.0f ? shift : 1e-30f;
    now.sum[h] *= alpha[h];
    moves |= !first;
  }
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] = ptx::exp2_approx(fmaf(s[i], scale.of(i / 2 % 2), -now.shift[i / 2 % 2]));
    now.sum[i / 2 % 2] += s[i];
  }
  set_limits(now);
  return __any_sync(~0u, moves);
}

// The same from P, where none of the warp's is infinite: it is as large as says which tokens outweigh all before.
__device__ __forceinline__ void lower(float (&s)[kLogits], Running& now, float (&alpha)[2]) {
  float max[2];
  find_row_max(s, max);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float lift = max[h] > ptx::exp2_approx(kReference) ? ptx::log2_approx(max[h]) - kReference : 0.0f;
    alpha[h] = ptx::exp2_approx(-lift);
    now.shift[h] += lift;
    if (now.shift[h] == 0.0f) now.shift[h] = 1e-30f;
    now.sum[h] *= alpha[h];
  }
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    s[i] *= alpha[i / 2 % 2];
    now.sum[i / 2 % 2] += s[i];
  }
  set_limits(now);
}

__device__ __forceinline__ void pack(const float (&s)[kLogits], Probabilities& p) {
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

}  // namespace fovea::attention::prefill
