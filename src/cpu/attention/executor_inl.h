// One work item, and the merge of partial states, for a variant: the loop over blocks of keys with an online softmax.
// Included once per SIMD target by each file that compiles variants (attention_variants.cc; a custom variant's own).
#if defined(FOVEA_CPU_ATTENTION_EXECUTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_CPU_ATTENTION_EXECUTOR_INL_H_
#undef FOVEA_CPU_ATTENTION_EXECUTOR_INL_H_
#else
#define FOVEA_CPU_ATTENTION_EXECUTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/attention/block.h"
#include "cpu/attention/matmul_inl.h"
#include "cpu/attention/quantized.h"
#include "variant/params.h"

HWY_BEFORE_NAMESPACE();
#define FOVEA_VARIANT_NAMESPACE fovea::variant::HWY_NAMESPACE
#include "variant/variants_inl.h"
#undef FOVEA_VARIANT_NAMESPACE

namespace fovea::cpu::HWY_NAMESPACE {
namespace variant = fovea::variant::HWY_NAMESPACE;

// Turns the logits of one row into weights, and its state (max, sum) into the state after the block. Returns what the
// row's running output must be multiplied by.
template <class Variant>
HWY_INLINE float weigh_row(const AttentionParams& params, float* HWY_RESTRICT s, int tokens, uint64_t seen,
                           bool all_seen, const variant::LogitPlace<SimdF>& row_place, const float* positions,
                           float& max, float& sum) {
  [[maybe_unused]] const auto& own = variant::params_of<Variant>(params);
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto block_max = hn::Set(d, kMinusInf);
  for (int t = 0; t < tokens; t += lanes) {
    auto x = hn::Load(d, s + t);
    auto place = row_place;
    if constexpr (Variant::kHasLogit || Variant::kHasVisible) place.kv_pos = {hn::Load(d, positions + t)};
    if constexpr (Variant::kHasLogit) {
      x = Variant::template logit<SimdMath>(own, {x}, place).v;
      if constexpr (Variant::kSoftmax) x = hn::Mul(x, hn::Set(d, variant::kLog2e));
    }
    if (!all_seen) x = hn::IfThenElse(mask_from(seen, t), x, hn::Set(d, kMinusInf));
    if constexpr (Variant::kHasVisible) {
      x = hn::IfThenElse(Variant::template visible<SimdMath>(own, place), x, hn::Set(d, kMinusInf));
    }
    if constexpr (!Variant::kSoftmax) {
      const auto hidden = hn::Eq(x, hn::Set(d, kMinusInf));
      x = hn::IfThenZeroElse(hidden, Variant::template weight<SimdMath>(own, {x}).v);
    }
    hn::Store(x, d, s + t);
    block_max = hn::Max(block_max, x);
  }
  if constexpr (!Variant::kSoftmax) return 1.0f;
  // Maxima pass over NaN, and so do weights: it is the sum that makes the row NaN.
  const float new_max = std::max(max, max_of(block_max));
  if (new_max == kMinusInf && seen == 0) {
    std::fill(s, s + kBlockTokens, 0.0f);
    return 1.0f;
  }
  const auto shift = hn::Set(d, new_max == kMinusInf ? 0.0f : new_max);
  auto block_sum = hn::Zero(d);
  auto exponents = hn::Zero(d);  // none is above 0, so that only a NaN makes their sum NaN
  for (int t = 0; t < tokens; t += lanes) {
    const auto x = hn::Sub(hn::Load(d, s + t), shift);
    const auto p = exp2_nonpositive(x);
    hn::Store(p, d, s + t);
    block_sum = hn::Add(block_sum, p);
    exponents = hn::Add(exponents, x);
  }
  block_sum = hn::IfThenElse(hn::IsNaN(exponents), exponents, block_sum);
  const float alpha = max == new_max ? 1.0f : hn::GetLane(exp2_nonpositive(hn::Set(d, max - new_max)));
  sum = sum * alpha + sum_of(block_sum);
  max = new_max;
  return alpha;
}

// Weighs the values of one row over exactly the tokens it sees: where values of the block that other rows see are NaN
// or infinite, a weight of 0 would not hide them.
HWY_INLINE void outputs_exact(const FormatOps& ops, const float* weights, const void* const* v_rows, uint64_t seen,
                              int head_dim, float alpha, float* o) {
  do {
    const int begin = seen == 0 ? 0 : std::countr_zero(seen);
    const int end = begin + (seen == 0 ? 0 : std::countr_one(seen >> begin));
    ops.outputs[0](weights, v_rows, v_rows, begin, end, head_dim, &alpha, o);
    alpha = 1.0f;
    seen = end == 64 ? 0 : seen & (~uint64_t{0} << end);
  } while (seen != 0);
}

template <class Variant>
double query_scale(const AttentionParams& params) {
  // In double, so that the product of the two constants adds no error that all logits share.
  return double{params.sm_scale} * (Variant::kHasLogit || !Variant::kSoftmax ? 1.0 : 1.4426950408889634);
}

// hadamard() of quantized.h, bit for bit. count: at least 16.
HWY_INLINE void rotate_row(float* HWY_RESTRICT x, int count) {
  const DF d;
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int half = 1; half < lanes; half *= 2) {
    const auto lane = hn::Iota(di, 0);
    const auto partner = hn::IndicesFromVec(d, hn::Xor(lane, hn::Set(di, half)));
    const auto second = hn::RebindMask(d, hn::TestBit(lane, hn::Set(di, half)));
    for (int i = 0; i < count; i += lanes) {
      const auto v = hn::Load(d, x + i);
      hn::Store(hn::Add(hn::TableLookupLanes(v, partner), hn::IfThenElse(second, hn::Neg(v), v)), d, x + i);
    }
  }
  for (int half = lanes; half < count; half *= 2) {
    for (int i = 0; i < count; i += i % half + lanes < half ? lanes : half + lanes) {
      const auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + half);
      hn::Store(hn::Add(a, b), d, x + i);
      hn::Store(hn::Sub(a, b), d, x + i + half);
    }
  }
  const auto by = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(count)));
  for (int i = 0; i < count; i += lanes) hn::Store(hn::Mul(hn::Load(d, x + i), by), d, x + i);
}

// How an item reads a quantized pool. What a hook of the variant transforms is brought to plain fp32 first.
template <class Variant>
struct Quantization {
  bool expand;         // rows are not what they stand for, see FormatOps::expand_block
  bool scales;         // each token's scale and zero are in memory, else the scale is the head's
  bool fold_keys;      // scale and zero applied to logits
  bool fold_values;    // and to weights
  bool rotate_keys;    // the query is rotated, as keys are
  bool rotate_values;  // the output is rotated back

  Quantization(const abi::KvPoolView& pool, const FormatOps& ops)
      : expand(ops.expand_block != nullptr),
        scales(pool.granularity == abi::ScaleGranularity::kTokenHead),
        fold_keys(expand && pool.granularity != abi::ScaleGranularity::kNone && !Variant::kHasKey),
        fold_values(expand && pool.granularity != abi::ScaleGranularity::kNone && !Variant::kHasValue),
        rotate_keys(expand && pool.rotated && !Variant::kHasKey),
        rotate_values(expand && pool.rotated && !Variant::kHasValue) {}
};

// logits[t] = scale[t] * logits[t] + zero[t] * (sum of the query's elements)
HWY_INLINE void fold_logits(float* HWY_RESTRICT logits, int tokens, const float* scale, const float* zero,
                            float q_sum) {
  const DF d;
  const auto sum = hn::Set(d, q_sum);
  for (int t = 0; t < tokens; t += static_cast<int>(hn::Lanes(d))) {
    const auto shift = hn::Mul(hn::Load(d, zero + t), sum);
    hn::Store(hn::MulAdd(hn::Load(d, scale + t), hn::Load(d, logits + t), shift), d, logits + t);
  }
}

HWY_INLINE void add_logits(const float* HWY_RESTRICT from, int count, float* HWY_RESTRICT to) {
  const DF d;
  for (int t = 0; t < count; t += static_cast<int>(hn::Lanes(d))) {
    hn::Store(hn::Add(hn::Load(d, to + t), hn::Load(d, from + t)), d, to + t);
  }
}

// weights[t] *= scale[t], 0 where the row does not see the token. Returns the sum of weight * zero before that.
HWY_INLINE float fold_weights(float* HWY_RESTRICT weights, int tokens, uint64_t seen, const float* scale,
                              const float* zero) {
  const DF d;
  auto sum = hn::Zero(d);
  for (int t = 0; t < tokens; t += static_cast<int>(hn::Lanes(d))) {
    const auto visible = mask_from(seen, t);
    const auto weight = hn::Load(d, weights + t);
    sum = hn::Add(sum, hn::IfThenElseZero(visible, hn::Mul(weight, hn::Load(d, zero + t))));
    hn::Store(hn::IfThenElseZero(visible, hn::Mul(weight, hn::Load(d, scale + t))), d, weights + t);
  }
  return sum_of(sum);
}

// Queries that are rounded to bf16 are rounded before they are scaled: exact for those given as bf16.
template <class Variant>
HWY_INLINE void load_queries(const ItemArgs& args, const RowTable& rows, const FormatOps& ops,
                             const Quantization<Variant>& quantization) {
  const AttentionParams& params = *args.params;
  const double scale = ops.round_queries != nullptr ? 1.0 : query_scale<Variant>(params);
  for (int i = 0; i < rows.count; ++i) {
    float* q = args.scratch.q + static_cast<size_t>(i) * args.head_dim;
    const variant::RowPlace place{rows.position(i), rows.q_head(i), args.head_dim};
    if constexpr (Variant::kHasQuery) {
      float* raw = args.scratch.kv_rows;
      read_row(*args.q, rows.q_row(i), place.head, args.head_dim, raw);
      const auto& own = variant::params_of<Variant>(params);
      for (int d = 0; d < args.head_dim; ++d) q[d] = static_cast<float>(scale * Variant::query(own, raw, d, place));
    } else {
      read_row(*args.q, rows.q_row(i), place.head, args.head_dim, q);
      for (int d = 0; d < args.head_dim; ++d) q[d] = static_cast<float>(scale * q[d]);
    }
    if (quantization.rotate_keys) rotate_row(q, args.head_dim);
    if (quantization.fold_keys) {
      double sum = 0.0;
      for (int d = 0; d < args.head_dim; ++d) sum += q[d];
      args.scratch.q_sum[i] =
          static_cast<float>(ops.round_queries != nullptr ? query_scale<Variant>(params) * sum : sum);
    }
  }
  if (ops.round_queries != nullptr) ops.round_queries(args.scratch.q, rows.count, args.head_dim);
}

// Replaces the rows of the block by transformed copies in fp32.
template <class Variant, bool kKeys>
HWY_INLINE void transform_rows(const ItemArgs& args, const FormatOps& ops, const float* positions, int tokens,
                               const BlockScales& scales, const void** rows) {
  const auto& own = variant::params_of<Variant>(*args.params);
  alignas(64) float raw[kMaxHeadDim];
  for (int t = 0; t < tokens; ++t) {
    ops.expand_row(rows[t], args.head_dim, raw);
    if (ops.expand_block != nullptr) {
      const float scale = (kKeys ? scales.k_scale : scales.v_scale)[t];
      const float zero = (kKeys ? scales.k_zero : scales.v_zero)[t];
      for (int d = 0; d < args.head_dim; ++d) raw[d] = scale * raw[d] + zero;
      if (args.work.pool->rotated) rotate_row(raw, args.head_dim);
    }
    float* to = args.scratch.kv_rows + static_cast<size_t>(t) * args.head_dim;
    const variant::RowPlace place{static_cast<int>(positions[t]), args.work.kv_head, args.head_dim};
    for (int d = 0; d < args.head_dim; ++d) {
      to[d] = kKeys ? Variant::key(own, raw, d, place) : Variant::value(own, raw, d, place);
    }
    rows[t] = to;
  }
  for (int t = tokens; t < kBlockTokens; ++t) rows[t] = rows[tokens - 1];
}

template <class Variant>
HWY_INLINE void write_rows(const ItemArgs& args, const RowTable& rows, const FormatOps& value_ops,
                           const Quantization<Variant>& quantization) {
  const ItemScratch& scratch = args.scratch;
  [[maybe_unused]] const auto& own = variant::params_of<Variant>(*args.params);
  const bool direct = args.work.item->flags & abi::kItemDirect;
  const uint32_t partial =
      direct ? 0 : abi::partial_row(*args.work.item, *args.work.block_row, args.work.kv_head, args.group);
  for (int i = 0; i < rows.count; ++i) {
    RowState state{scratch.max[i], scratch.sum[i]};
    const int head = rows.q_head(i);
    if (direct) {
      if constexpr (Variant::kHasExtraLogit) {
        state.extra = Variant::extra_logit(own, head) * variant::kLog2e;
      }
    }
    float* row = direct ? scratch.kv_rows : args.partial_out + static_cast<size_t>(partial + i) * args.head_dim;
    const RowResult result = Variant::kSoftmax ? finish_state(state) : RowResult{1.0f, 0.0f};
    value_ops.finish_row(scratch.o + static_cast<size_t>(i) * args.head_dim, args.head_dim, result.divisor, row);
    if (quantization.fold_values) {
      const float zero = scratch.zero_sum[i] / result.divisor;
      for (int d = 0; d < args.head_dim; ++d) row[d] += zero;
    }
    if (quantization.rotate_values) rotate_row(row, args.head_dim);
    if (!direct) {
      args.partial_lse[partial + i] = result.lse;
      continue;
    }
    if constexpr (Variant::kHasOutput) {
      const variant::RowPlace place{rows.position(i), head, args.head_dim};
      for (int d = 0; d < args.head_dim; ++d) row[d] = Variant::output(own, row[d], d, place);
    }
    write_row(row, args.head_dim, *args.out, rows.q_row(i), head);
    if (args.lse != nullptr) args.lse[rows.q_row(i) * args.q->shape[1] + head] = result.lse;
  }
}

// Scales of a pool that has none a token; the others are read block by block.
HWY_INLINE void fill_scales(const QueueWork& work, BlockScales& scales) {
  const abi::KvPoolView& pool = *work.pool;
  const auto of_head = [&](const void* of_heads) {
    const bool known = pool.granularity == abi::ScaleGranularity::kHead && of_heads != nullptr;
    return known ? static_cast<const float*>(of_heads)[work.kv_head] : 1.0f;
  };
  std::fill(scales.k_scale, scales.k_scale + kBlockTokens, of_head(pool.k_scale));
  std::fill(scales.v_scale, scales.v_scale + kBlockTokens, of_head(pool.v_scale));
  std::fill(scales.k_zero, scales.k_zero + kBlockTokens, 0.0f);
  std::fill(scales.v_zero, scales.v_zero + kBlockTokens, 0.0f);
}

// Brings the block's keys and values to bf16, and its scales to fp32.
HWY_INLINE void expand_quantized(const ItemArgs& args, const BlockWalk& walk, const FormatOps& ops, bool read_scales,
                                 BlockScales& scales) {
  if (read_scales) {
    alignas(64) uint32_t words[2][kBlockTokens] = {};
    walk.find_scales(words[0], words[1]);
    expand_scales(words[0], scales.k_scale, scales.k_zero);
    expand_scales(words[1], scales.v_scale, scales.v_zero);
  }
  ops.expand_block(walk.k_rows(), walk.next_k_rows(), walk.tokens(), args.head_dim, args.scratch.codes[0]);
  ops.expand_block(walk.v_rows(), walk.next_v_rows(), walk.tokens(), args.head_dim, args.scratch.codes[1]);
}

// The rows of a block under the head `offset` bytes behind the first, whose rows are first_head; what is read after
// them is `following`, following_offset bytes on.
HWY_INLINE StreamRows find_stream_rows(const void* const* first_head, uintptr_t offset, const void* const* following,
                                       uintptr_t following_offset, int tokens, const void** rows) {
  const auto copy = [](const void* const* from, uintptr_t by, int count, const void** to) {
    for (int i = 0; i < count; ++i) to[i] = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from[i]) + by);
  };
  const StreamRows streams{rows, tokens == kBlockTokens};
  if (!streams.whole) {
    copy(first_head, offset, kBlockTokens, rows);
    copy(following, following_offset, kBlockTokens, rows + kBlockTokens);
    return streams;
  }
  for (int t = 0; t < kBlockTokens; t += kStreamTokens, rows += StreamRows::kAStream) {
    copy(first_head + t, offset, kStreamTokens, rows);
    copy(following + t, following_offset, kStreamTokens, rows + kStreamTokens);
  }
  return streams;
}

// Whether an item is computed from keys and values as they lie in the pool, by the kernels for few rows.
template <class Variant>
bool is_narrow(const ItemArgs& args) {
  const FormatOps& ops = format_ops(args.work.pool->dtype, args.params->products);
  return !Variant::kHasKey && !Variant::kHasValue && args.work.item->row_count * args.group <= kRowsPerPass &&
         args.head_dim % kRowLogitsHeadDim == 0 && ops.row_logits[0] != nullptr;
}

// Before the first block, rows have seen nothing.
HWY_INLINE void clear_states(const ItemScratch& scratch, size_t num_rows, int head_dim) {
  std::fill(scratch.zero_sum, scratch.zero_sum + num_rows, 0.0f);
  std::fill(scratch.o, scratch.o + num_rows * static_cast<size_t>(head_dim), 0.0f);
  std::fill(scratch.max, scratch.max + num_rows, kMinusInf);
  std::fill(scratch.sum, scratch.sum + num_rows, 0.0f);
}

// weigh_row() for row i of a head, whose logits are s.
template <class Variant>
HWY_INLINE float weigh_row_of_head(const ItemArgs& args, const RowTable& rows, int i, int tokens,
                                   const float* positions, float* s) {
  const uint64_t seen = args.scratch.seen[i / args.group];
  const variant::LogitPlace<SimdF> place{SimdMath::set(static_cast<float>(rows.position(i))), SimdMath::set(0.0f),
                                         rows.q_head(i), args.work.kv_head};
  return weigh_row<Variant>(*args.params, s, tokens, seen, seen == ~uint64_t{0}, place, positions, args.scratch.max[i],
                            args.scratch.sum[i]);
}

// The same where scales and zeros of tokens touch logits and weights.
template <class Variant>
HWY_INLINE float weigh_folded(const ItemArgs& args, const RowTable& rows, const Quantization<Variant>& quantization,
                              const BlockScales& scales, int i, int tokens, const float* positions, float* s) {
  const ItemScratch& scratch = args.scratch;
  if (quantization.fold_keys) fold_logits(s, tokens, scales.k_scale, scales.k_zero, scratch.q_sum[i]);
  const float alpha = weigh_row_of_head<Variant>(args, rows, i, tokens, positions, s);
  if (quantization.fold_values) {
    const float zeros = fold_weights(s, tokens, scratch.seen[i / args.group], scales.v_scale, scales.v_zero);
    scratch.zero_sum[i] = scratch.zero_sum[i] * alpha + zeros;
  }
  return alpha;
}

// Whether values that some row sees are NaN or infinite.
HWY_INLINE bool any_seen_not_finite(const FormatOps& ops, const void* const* v_rows, uint64_t seen, int head_dim) {
  for (; seen != 0; seen &= seen - 1) {
    if (ops.any_not_finite(v_rows[std::countr_zero(seen)], head_dim)) return true;
  }
  return false;
}

// One head of an item, from args.place on; false: it was left there.
template <class Variant>
bool run_head(const ItemArgs& args) {
  constexpr bool kNeedPositions = Variant::kHasLogit || Variant::kHasVisible || Variant::kHasKey || Variant::kHasValue;
  const ItemScratch& scratch = args.scratch;
  const int head_dim = args.head_dim;
  const int group = args.group;
  const RowTable rows(args);
  const AttentionProducts products = args.params->products;
  const FormatOps& pool_ops = format_ops(args.work.pool->dtype, products);
  const FormatOps& key_ops = Variant::kHasKey ? format_ops(abi::KvDType::kF32, products) : pool_ops;
  const FormatOps& value_ops = Variant::kHasValue ? format_ops(abi::KvDType::kF32, products) : pool_ops;
  const auto scale = static_cast<float>(query_scale<Variant>(*args.params));

  const Quantization<Variant> quantization(*args.work.pool, pool_ops);
  BlockScales scales;
  if (quantization.expand && !quantization.scales) fill_scales(args.work, scales);

  if (args.pause == nullptr || args.place->token == ItemPlace::kStart) {
    load_queries<Variant>(args, rows, key_ops, quantization);
    clear_states(scratch, static_cast<size_t>(rows.count), head_dim);
  }

  const int passes = (rows.count + kRowsPerPass - 1) / kRowsPerPass;
  const int rows_per_pass = (rows.count + passes - 1) / passes;
  // Few rows do not repay the transposition of the keys; run_heads() takes those of other pools.
  const bool narrow = quantization.expand && is_narrow<Variant>(args);
  // Queries given as bf16 are rounded by nothing but their rotation; others are once, rotated or not.
  const bool two_halves = quantization.rotate_keys && key_ops.round_queries != nullptr && args.q->dtype == DType::kBF16;
  alignas(64) float positions[kBlockTokens];
  BlockWalk walk(args, pool_ops.element_bits);
  while (walk.next()) {
    const int tokens = walk.tokens();
    if constexpr (kNeedPositions) walk.fill_positions(positions);
    if (quantization.expand) expand_quantized(args, walk, pool_ops, quantization.scales, scales);
    if constexpr (Variant::kHasKey) {
      transform_rows<Variant, true>(args, pool_ops, positions, tokens, scales, walk.k_rows());
    }
    // Expansion fetches the next block; what it left lies in the cache.
    const void* const* next_keys = quantization.expand ? walk.k_rows() : walk.next_k_rows();
    const void* const* next_values = quantization.expand ? walk.v_rows() : walk.next_v_rows();
    if (!narrow) {
      key_ops.pack_keys(walk.k_rows(), next_keys, key_ops.ahead_step, tokens, head_dim, scratch.k_block);
    }
    if constexpr (Variant::kHasValue) {
      transform_rows<Variant, false>(args, pool_ops, positions, tokens, scales, walk.v_rows());
    }
    // Several passes over a block that all rows see whole: its values are brought into pairs once for them.
    const bool packed = passes > 2 && !walk.masked() && tokens == kBlockTokens && value_ops.pack_values != nullptr &&
                        head_dim % kPackedHeadDim == 0;
    auto* v_block = reinterpret_cast<uint32_t*>(scratch.codes[0]);  // whose keys are packed
    if (packed) value_ops.pack_values(walk.v_rows(), head_dim, v_block);
    const bool exact = walk.masked() && any_seen_not_finite(value_ops, walk.v_rows(), walk.seen_by_any(), head_dim);
    for (int first = 0; first < rows.count; first += rows_per_pass) {
      const int count = std::min(rows_per_pass, rows.count - first);
      uint64_t seen_by_pass = 0;
      for (int token = first / group; token <= (first + count - 1) / group; ++token) {
        seen_by_pass |= scratch.seen[token];
      }
      if (seen_by_pass == 0) continue;
      const auto multiply = [&](const float* q, float* logits) {
        if (narrow) {
          const StreamRows keys = find_stream_rows(walk.k_rows(), 0, walk.k_rows(), 0, tokens, scratch.streams);
          key_ops.row_logits[count - 1](q, keys, head_dim, tokens, scale, logits);
        } else {
          key_ops.logits[count - 1](q, scratch.k_block, head_dim, tokens, scale,
                                    first == 0 && !quantization.expand ? next_keys : nullptr, logits);
        }
      };
      const float* q = scratch.q + static_cast<size_t>(first) * head_dim;
      multiply(q, scratch.s_block);
      if (two_halves) {
        static_assert(2 * kRowsPerPass <= kMaxRowsAtOnce);
        float* const rest = scratch.s_block + kRowsPerPass * kBlockTokens;
        multiply(q + head_dim / 2, rest);
        add_logits(rest, count * kBlockTokens, scratch.s_block);
      }
      alignas(64) float alpha[kRowsPerPass];
      for (int r = 0; r < count; ++r) {
        alpha[r] = weigh_folded<Variant>(args, rows, quantization, scales, first + r, tokens, positions,
                                         scratch.s_block + r * kBlockTokens);
      }
      float* o = scratch.o + static_cast<size_t>(first) * head_dim;
      if (packed) {
        value_ops.packed_outputs[count - 1](scratch.s_block, v_block, first == 0 ? next_values : nullptr, head_dim,
                                            alpha, o);
        continue;
      }
      if (!exact) {
        const int begin = std::countr_zero(seen_by_pass);
        const int end = 64 - std::countl_zero(seen_by_pass);
        const void* const* ahead = first == 0 ? next_values : walk.v_rows();
        value_ops.outputs[count - 1](scratch.s_block, walk.v_rows(), ahead, begin, end, head_dim, alpha, o);
        continue;
      }
      for (int r = 0; r < count; ++r) {
        outputs_exact(value_ops, scratch.s_block + r * kBlockTokens, walk.v_rows(), scratch.seen[(first + r) / group],
                      head_dim, alpha[r], o + static_cast<size_t>(r) * head_dim);
      }
    }
    if (args.pause != nullptr && walk.goes_on() && args.pause_is_due(*args.pause)) {
      args.place->token = walk.next_token();
      return false;
    }
  }
  if (args.pause != nullptr) args.place->token = ItemPlace::kStart;
  write_rows<Variant>(args, rows, value_ops, quantization);
  return true;
}

// The part of an item's arguments that belongs to its h-th head.
HWY_INLINE ItemArgs args_of_head(const ItemArgs& args, int h) {
  ItemArgs of_head = args;
  const auto rows = static_cast<size_t>(h) * args.work.item->row_count * static_cast<size_t>(args.group);
  of_head.work.kv_head += h;
  of_head.num_heads = 1;
  of_head.scratch.q += rows * static_cast<size_t>(args.head_dim);
  of_head.scratch.o += rows * static_cast<size_t>(args.head_dim);
  of_head.scratch.max += rows;
  of_head.scratch.sum += rows;
  of_head.scratch.zero_sum += rows;
  of_head.scratch.s_block += rows * kBlockTokens;
  return of_head;
}

// Heads of an item of few rows that are computed together, see run_heads().
struct HeadsAtOnce {
  const ItemArgs& args;  // of all
  const FormatOps& ops;
  int num_rows;          // of each
  uintptr_t head_bytes;  // from a head of a token to the next
  ItemArgs of_head[kMaxHeadsAtOnce];
  alignas(64) float alpha[kMaxHeadsAtOnce][kMaxRowsPerPass];

  // A head's rows of the block; those of the next head, or `following` behind the last, are fetched meanwhile.
  StreamRows rows_of(int h, const void* const* block, const void* const* following, int tokens) const {
    const bool last = h + 1 == args.num_heads;
    const uintptr_t offset = static_cast<uintptr_t>(h) * head_bytes;
    return find_stream_rows(block, offset, last ? following : block, last ? 0 : offset + head_bytes, tokens,
                            args.scratch.streams);
  }
};

// The keys of a block: weights of all heads.
template <class Variant>
HWY_INLINE void weigh_heads(HeadsAtOnce& heads, const BlockWalk& walk, float scale, const float* positions) {
  const int tokens = walk.tokens();
  for (int h = 0; h < heads.args.num_heads; ++h) {
    const ItemArgs& own = heads.of_head[h];
    const StreamRows keys = heads.rows_of(h, walk.k_rows(), walk.v_rows(), tokens);
    heads.ops.row_logits[heads.num_rows - 1](own.scratch.q, keys, own.head_dim, tokens, scale, own.scratch.s_block);
    const RowTable table(own);
    for (int r = 0; r < heads.num_rows; ++r) {
      heads.alpha[h][r] =
          weigh_row_of_head<Variant>(own, table, r, tokens, positions, own.scratch.s_block + r * kBlockTokens);
    }
  }
}

// One head's values of a block where rows see some that are NaN or infinite and others do not see them; false where
// there are none, and nothing was done.
HWY_INLINE bool add_values_exactly(const HeadsAtOnce& heads, int h, const BlockWalk& walk) {
  const ItemArgs& own = heads.of_head[h];
  const void* rows[kBlockTokens];
  for (int t = 0; t < kBlockTokens; ++t) {
    rows[t] = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(walk.v_rows()[t]) +
                                            static_cast<uintptr_t>(h) * heads.head_bytes);
  }
  if (!any_seen_not_finite(heads.ops, rows, walk.seen_by_any(), own.head_dim)) return false;
  for (int r = 0; r < heads.num_rows; ++r) {
    outputs_exact(heads.ops, own.scratch.s_block + r * kBlockTokens, rows, own.scratch.seen[r / own.group],
                  own.head_dim, heads.alpha[h][r],
                  own.scratch.o + static_cast<size_t>(r) * static_cast<size_t>(own.head_dim));
  }
  return true;
}

// The values of a block, of all heads.
HWY_INLINE void add_values_of_heads(const HeadsAtOnce& heads, const BlockWalk& walk) {
  const uint64_t seen = walk.seen_by_any();
  for (int h = 0; h < heads.args.num_heads; ++h) {
    const ItemScratch& own = heads.of_head[h].scratch;
    const int head_dim = heads.args.head_dim;
    const StreamRows values = heads.rows_of(h, walk.v_rows(), walk.next_k_rows(), walk.tokens());
    if (walk.masked() && add_values_exactly(heads, h, walk)) continue;
    if (values.whole) {
      heads.ops.row_outputs[heads.num_rows - 1](own.s_block, values, head_dim, heads.alpha[h], own.o);
    } else {
      heads.ops.outputs[heads.num_rows - 1](own.s_block, values.rows, values.rows + kBlockTokens,
                                            std::countr_zero(seen), 64 - std::countl_zero(seen), head_dim,
                                            heads.alpha[h], own.o);
    }
  }
}

// All heads of an item of few rows, a block at a time: first the keys of all, then their values. The pieces that are
// read are then long enough for the hardware to run ahead of the reads.
template <class Variant>
void run_heads(const ItemArgs& args) {
  constexpr bool kNeedPositions = Variant::kHasLogit || Variant::kHasVisible;
  const FormatOps& ops = format_ops(args.work.pool->dtype, args.params->products);
  const Quantization<Variant> quantization(*args.work.pool, ops);
  const auto scale = static_cast<float>(query_scale<Variant>(*args.params));
  const auto head_bytes = static_cast<uintptr_t>(args.work.pool->head_stride * ops.element_bits / 8);
  HeadsAtOnce heads{args, ops, args.work.item->row_count * args.group, head_bytes, {}, {}};
  clear_states(args.scratch, static_cast<size_t>(args.num_heads) * static_cast<size_t>(heads.num_rows), args.head_dim);
  for (int h = 0; h < args.num_heads; ++h) {
    heads.of_head[h] = args_of_head(args, h);
    load_queries<Variant>(heads.of_head[h], RowTable(heads.of_head[h]), ops, quantization);
  }
  alignas(64) float positions[kBlockTokens];
  BlockWalk walk(args, ops.element_bits);
  while (walk.next()) {
    if constexpr (kNeedPositions) walk.fill_positions(positions);
    weigh_heads<Variant>(heads, walk, scale, positions);
    add_values_of_heads(heads, walk);
  }
  for (int h = 0; h < args.num_heads; ++h) {
    write_rows<Variant>(heads.of_head[h], RowTable(heads.of_head[h]), ops, quantization);
  }
}

template <class Variant>
bool run_item(const ItemArgs& args) {
  // Where a head's tokens lie apart, the prefetches of packing are worth more than what it costs.
  const abi::KvPoolView& pool = *args.work.pool;
  const bool expand = format_ops(pool.dtype, args.params->products).expand_block != nullptr;
  if (!expand && pool.token_stride == args.head_dim && is_narrow<Variant>(args)) {
    run_heads<Variant>(args);
    return true;
  }
  ItemArgs of_head = args;
  for (int h = args.pause == nullptr ? 0 : args.place->head; h < args.num_heads; ++h) {
    of_head.work.kv_head = args.work.kv_head + h;
    of_head.next = args.next;
    if (h + 1 < args.num_heads) {
      of_head.next = args.work;
      of_head.next.kv_head = of_head.work.kv_head + 1;
    }
    if (!run_head<Variant>(of_head)) {
      args.place->head = h;
      return false;
    }
  }
  if (args.pause != nullptr) args.place->head = 0;
  return true;
}

// Output row = sum of the parts' outputs, each by its share of the weight; parts in the order of the list.
template <class Variant>
void merge(const MergeArgs& args, uint32_t begin, uint32_t end) {
  [[maybe_unused]] const auto& own = variant::params_of<Variant>(*args.params);
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int head_dim = args.head_dim;
  alignas(64) float row[kMaxHeadDim];
  for (uint32_t m = begin; m < end; ++m) {
    const abi::MergeEntry& entry = args.plan->merges[m];
    const uint32_t* parts = args.plan->merge_parts + entry.parts_begin;
    const int64_t q_row = args.plan->row_indices[entry.row];
    for (int g = 0; g < args.group; ++g) {
      const int head = entry.head * args.group + g;
      float extra = kMinusInf;
      if constexpr (Variant::kHasExtraLogit) extra = Variant::extra_logit(own, head) * variant::kLog2e;
      float max = extra;
      if constexpr (Variant::kSoftmax) {
        for (int i = 0; i < entry.num_parts; ++i) max = std::max(max, args.partial_lse[parts[i] + g]);
      }
      float sum = extra == kMinusInf ? 0.0f : std::exp2(extra - max);
      std::fill(row, row + head_dim, 0.0f);
      for (int i = 0; i < entry.num_parts; ++i) {
        float weight = 1.0f;
        if constexpr (Variant::kSoftmax) {
          const float lse = args.partial_lse[parts[i] + g];
          if (lse == kMinusInf) continue;
          weight = std::exp2(lse - max);
          sum += weight;
        }
        const float* part = args.partial_out + static_cast<size_t>(parts[i] + g) * head_dim;
        const auto by = hn::Set(d, weight);
        for (int c = 0; c < head_dim; c += lanes) {
          hn::Store(hn::MulAdd(by, hn::LoadU(d, part + c), hn::Load(d, row + c)), d, row + c);
        }
      }
      if constexpr (Variant::kSoftmax) {
        if (sum != 0.0f) {
          const auto by = hn::Set(d, sum);
          for (int c = 0; c < head_dim; c += lanes) hn::Store(hn::Div(hn::Load(d, row + c), by), d, row + c);
        }
      }
      if constexpr (Variant::kHasOutput) {
        const variant::RowPlace place{args.plan->q_pos[entry.row], head, head_dim};
        for (int c = 0; c < head_dim; ++c) row[c] = Variant::output(own, row[c], c, place);
      }
      write_row(row, head_dim, *args.out, q_row, head);
      if (args.lse != nullptr) {
        const float lse = !Variant::kSoftmax ? 0.0f : sum != 0.0f ? max + std::log2(sum) : kMinusInf;
        args.lse[q_row * args.out->shape[1] + head] = lse;
      }
    }
  }
}

// What dispatch hands out for a variant.
template <class Variant>
AttentionKernels kernels_of() {
  return {&run_item<Variant>, &merge<Variant>};
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_CPU_ATTENTION_EXECUTOR_INL_H_
