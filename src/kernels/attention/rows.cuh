// The (query token, query head) rows of an item: where they are, and their queries as fragments of the first product.
// Used by the consumers and, for outputs, by the merge.
#pragma once

#include "kernels/attention/queue.cuh"
#include "kernels/attention/rotation.cuh"
#include "kernels/ptx/mma.cuh"

namespace fovea::attention {

// What a warp works on: 16 rows of an item.
struct Work {
  const abi::AttentionArgs* args;
  uint32_t warp;
  uint32_t lane;
  const ItemRecord* record;
  uint32_t begin;  // KV tokens of the run
  uint32_t end;
  uint32_t rows;       // (token, head) rows of the item
  uint32_t first_row;  // of this warp's 16
  uint32_t group;
  uint32_t q_heads;
  const abi::DevicePlanHeader* header;
};

struct Row {
  bool valid;
  uint32_t token;  // of the item
  uint32_t q_head;
  uint32_t q_row;  // of Q and of the output
  int32_t position;
};

// Row of Q and of the output of a query token of the item.
__device__ __forceinline__ uint32_t row_of_token(const Work& work, uint32_t token) {
  if (token < kRecordTokens) return work.record->rows[token];
  return section<uint32_t>(*work.args, work.header->row_indices)[work.record->item.row_begin + token];
}

__device__ __forceinline__ Row find_row(const Work& work, uint32_t row) {
  Row r{};
  r.valid = row < work.rows;
  if (!r.valid) return r;
  r.token = row / work.group;
  r.q_head = work.record->head * work.group + (row - r.token * work.group);
  r.q_row = row_of_token(work, r.token);
  r.position = r.token < kRecordTokens
                   ? work.record->positions[r.token]
                   : section<int32_t>(*work.args, work.header->q_pos)[work.record->item.row_begin + r.token];
  return r;
}

__device__ __forceinline__ const VariantParams& variant_params(const abi::AttentionArgs& args) {
  return *reinterpret_cast<const VariantParams*>(args.variant_params);
}

// A logit through the variant's hooks; clears bit `bit` of `visible` where they mask it.
__device__ __forceinline__ float variant_logit(const VariantParams& params, float s,
                                               const fovea::variant::LogitPlace<float>& place, uint32_t bit,
                                               uint32_t& visible) {
  if constexpr (Variant::kHasLogit) {
    s = Variant::template logit<fovea::variant::ScalarMath>(params, s, place);
    if constexpr (Variant::kSoftmax) s *= fovea::variant::kLog2e;
  }
  if constexpr (Variant::kHasVisible) {
    if (!Variant::template visible<fovea::variant::ScalarMath>(params, place)) visible &= ~(1u << bit);
  }
  return s;
}

// What logits are multiplied by; softmax takes them in base 2.
__device__ __forceinline__ float logit_scale(const abi::AttentionArgs& args, uint32_t kv_head) {
  float scale = variant_params(args).sm_scale;
  if constexpr (Variant::kSoftmax && !Variant::kHasLogit) scale *= fovea::variant::kLog2e;
  if constexpr (kFp8 && !kTokenScales) {
    if (args.pool.k_scale != nullptr) scale *= static_cast<const float*>(args.pool.k_scale)[kv_head];
  }
  return scale;
}

// A fragments of all k-steps, and what the logits of the lane's rows (r and r + 8) are multiplied by.
struct Queries {
  uint32_t a[kQueryBlocks][4];
  const uint4* rest;  // of this lane, in shared memory; 32 apart
  float scale[kScaleRows ? 2 : 1];
  float sum[kIntegers ? 2 : 1];   // of the row's elements, scaled: what a zero of 1 adds to its logits
  float bias[kIntegers ? 2 : 1];  // what the products of the row start at, so that codes lose their bias

  template <int b>
  __device__ __forceinline__ void get(uint32_t (&to)[4]) const {
    if constexpr (b < kQueryBlocks) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = a[b][i];
    } else {
      const uint4 x = rest[(b - kQueryBlocks) * 32];
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
  }
};

// Which dims a lane holds of a block of 16, as (first pair, second pair): of keys of a byte one register has four
// neighbours, of keys of half a byte eight, which two blocks share.
__device__ __forceinline__ uint32_t first_dim(uint32_t block, uint32_t lane) {
  if constexpr (kInt4) return block / 2 * 32 + block % 2 * 2 + 8 * (lane & 3);
  return block * 16 + (kNarrow ? 4 : 2) * (lane & 3);
}
inline constexpr uint32_t kSecondPair = kInt4 ? 4 : kNarrow ? 2 : 8;

// The hook changes single elements but sees whole rows: the warp lays each row out in shared memory first.
__device__ __forceinline__ void transform_query(const abi::AttentionArgs& args, const Row& row, const uint16_t* from,
                                                float* scratch, uint32_t lane, uint32_t quad_row,
                                                float (&values)[kBlocks][4]) {
  for (uint32_t r = 0; r < 8; ++r) {
    const uint64_t source = __shfl_sync(~0u, reinterpret_cast<uint64_t>(from), r * 4);
    const bool valid = __shfl_sync(~0u, row.valid, r * 4);
    __syncwarp();
    for (uint32_t d = lane; d < kHeadDim; d += 32) {
      const uint32_t raw = valid ? reinterpret_cast<const uint16_t*>(source)[d] : 0;
      scratch[d] = ptx::unpack_low<kQueryBf16>(raw);
    }
    __syncwarp();
    if (quad_row != r) continue;
    const fovea::variant::RowPlace place{row.position, static_cast<int>(row.q_head), kHeadDim};
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t d = first_dim(b, lane) + (i / 2) * kSecondPair + i % 2;
        values[b][i] = valid ? Variant::query(variant_params(args), scratch, static_cast<int>(d), place) : 0.0f;
      }
    }
  }
}

// The same without a hook.
__device__ __forceinline__ void expand_query(const Row& row, const uint16_t* from, uint32_t lane,
                                             float (&values)[kBlocks][4]) {
#pragma unroll
  for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint16_t* const at = from + first_dim(b, lane) + i * kSecondPair;
      const uint32_t pair = row.valid ? *reinterpret_cast<const uint32_t*>(at) : 0;
      values[b][2 * i] = ptx::unpack_low<kQueryBf16>(pair);
      values[b][2 * i + 1] = ptx::unpack_high<kQueryBf16>(pair);
    }
  }
}

// All k-steps of two rows, before wide heads leave some of them in shared memory.
struct Fragments {
  uint32_t a[kBlocks][4];
  float scale[kScaleRows ? 2 : 1];
};

// The power of two that brings a row whose largest element among the lane's is `most` into the range of halves.
__device__ __forceinline__ float range_factor(float most) {
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  const uint32_t exponent = __float_as_uint(most) & 0x7f800000u;
  return exponent == 0 || exponent >= 0x7e800000u ? 1.0f : __uint_as_float(0x7f000000u - exponent);
}

// Row h of the fragments as it lies in memory, in the type of the products.
__device__ __forceinline__ void fill_loaded(const Row& row, const uint16_t* from, float scale, uint32_t lane, int h,
                                            Fragments& q) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint16_t* at = from + first_dim(b, lane);
    q.a[b][h] = q.a[b][h + 2] = 0;
    if (!row.valid) continue;
    q.a[b][h] = *reinterpret_cast<const uint32_t*>(at);
    q.a[b][h + 2] = *reinterpret_cast<const uint32_t*>(at + kSecondPair);
  }
  [[maybe_unused]] float factor = 1.0f;
  if constexpr (kScaleRows) {
    float most = 0.0f;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        most = fmaxf(most, fabsf(ptx::unpack_low<kQueryBf16>(q.a[b][h + 2 * i])));
        most = fmaxf(most, fabsf(ptx::unpack_high<kQueryBf16>(q.a[b][h + 2 * i])));
      }
    }
    factor = range_factor(most);
    q.scale[h] = scale / factor;
  }
  if constexpr (kScaleRows || kQueryBf16 != kMmaBf16) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t& x = q.a[b][h + 2 * i];
        x = ptx::pack2<kMmaBf16>(ptx::unpack_low<kQueryBf16>(x) * factor, ptx::unpack_high<kQueryBf16>(x) * factor);
      }
    }
  }
}

// Makes row h of the fragments meet stored integers, and finds what their zeros and biases add to its logits.
__device__ __forceinline__ void prepare_for_integers(int h, Fragments& q, Queries& out) {
  // Codes of odd half-bytes stand 16 times as high: queries that meet the others make up for it.
  constexpr float kUnit = kInt4 ? 16.0f / 16777216.0f : 1.0f / 16777216.0f;
  constexpr float kBias = kInt4 ? abi::kI4Bias : abi::kI8Bias;
  float sum = 0.0f;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum += ptx::unpack_low<kMmaBf16>(q.a[b][h + 2 * i]) + ptx::unpack_high<kMmaBf16>(q.a[b][h + 2 * i]);
    }
    if constexpr (kInt4) {  // keys unpack to dims four apart
      const uint32_t first = q.a[b][h], second = q.a[b][h + 2];
      q.a[b][h] = ptx::multiply_halves(__byte_perm(first, second, 0x5410), 0x4c004c00u);
      q.a[b][h + 2] = __byte_perm(first, second, 0x7632);
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  out.sum[h] = sum * q.scale[h];
  out.bias[h] = sum * (-kBias * kUnit);
  q.scale[h] *= 1.0f / kUnit;
}

__device__ __forceinline__ Queries load_queries(const abi::AttentionArgs& args, const Row (&rows)[2], float scale,
                                                float* scratch, uint4* rest, uint32_t lane) {
  Fragments q;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint16_t* from = static_cast<const uint16_t*>(args.q) +
                           static_cast<long long>(rows[h].q_row) * args.q_row_stride +
                           static_cast<long long>(rows[h].q_head) * args.q_head_stride;
    if constexpr (Variant::kHasQuery || kRotated) {
      float values[kBlocks][4];
      if constexpr (Variant::kHasQuery) {
        transform_query(args, rows[h], from, scratch, lane, lane / 4, values);
      } else {
        expand_query(rows[h], from, lane, values);
      }
      if constexpr (kRotated) {
        float dims[kBlocks * 4];
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) dims[i] = values[i / 4][i % 4];
        rotate<1, 2>(dims, lane);
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) values[i / 4][i % 4] = dims[i];
      }
      float factor = 1.0f;
      if constexpr (kScaleRows) {
        float most = 0.0f;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(values[b][i]));
        }
        factor = range_factor(most);
        q.scale[h] = scale / factor;
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        q.a[b][h] = ptx::pack2<kMmaBf16>(values[b][0] * factor, values[b][1] * factor);
        q.a[b][h + 2] = ptx::pack2<kMmaBf16>(values[b][2] * factor, values[b][3] * factor);
      }
    } else {
      fill_loaded(rows[h], from, scale, lane, h, q);
    }
  }
  if constexpr (!kScaleRows) q.scale[0] = scale;
  Queries out;
  if constexpr (kIntegers) {
#pragma unroll
    for (int h = 0; h < 2; ++h) prepare_for_integers(h, q, out);
  }
#pragma unroll
  for (int b = 0; b < kQueryBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out.a[b][i] = q.a[b][i];
  }
#pragma unroll
  for (int i = 0; i < (kScaleRows ? 2 : 1); ++i) out.scale[i] = q.scale[i];
  out.rest = rest;
  if constexpr (kQueryBlocks < kBlocks) {  // each lane writes and reads its own
#pragma unroll
    for (int b = kQueryBlocks; b < kBlocks; ++b) {
      rest[(b - kQueryBlocks) * 32] = {q.a[b][0], q.a[b][1], q.a[b][2], q.a[b][3]};
    }
  }
  return out;
}

}  // namespace fovea::attention
