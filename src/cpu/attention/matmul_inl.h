// The two matrix products of an attention block as register-blocked micro-kernels: logits = Q K^T over transposed fp32
// keys, and O += P V straight from the pool. A row's arithmetic (the order of its additions) is the same however many
// rows share the pass. Included once per SIMD target.
#if defined(FOVEA_CPU_ATTENTION_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_CPU_ATTENTION_MATMUL_INL_H_
#undef FOVEA_CPU_ATTENTION_MATMUL_INL_H_
#else
#define FOVEA_CPU_ATTENTION_MATMUL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "cpu/attention/bf16_kernels.h"
#include "cpu/attention/kv_format_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// Rows a pass: rows * vectors accumulators, the vectors and a broadcast are held in registers.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kRowsPerPass = 8;
inline constexpr int kRegisters = 32;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kRowsPerPass = 6;
inline constexpr int kRegisters = 16;
#else
inline constexpr int kRowsPerPass = 4;
inline constexpr int kRegisters = 16;
#endif
static_assert(kRowsPerPass <= kMaxRowsPerPass);

// Products are summed in slices of this many elements of the head dim, then the slices: the error of a long chain of
// additions halves at head_dim 128, at a cost of three instructions in thirty-five.
inline constexpr int kSlice = 32;

// Packed keys in fp32: one element a word.
struct WordsF32 {
  static constexpr int kPerWord = 1;
  static HWY_INLINE VF element(hn::Vec<DU> words, int) { return hn::BitCast(DF(), words); }
};
// Packed keys in bf16: elements 2w (low half) and 2w + 1 of a token in one word.
struct WordsBF16 {
  static constexpr int kPerWord = 2;
  static HWY_INLINE VF element(hn::Vec<DU> words, int i) {
    return hn::BitCast(DF(), i == 0 ? hn::ShiftLeft<16>(words) : hn::And(words, hn::Set(DU(), 0xffff0000u)));
  }
};

// d ascends within a slice, slices ascend.
template <class Words, int kRows>
HWY_NOINLINE void logits_pass(const float* HWY_RESTRICT q, const uint32_t* HWY_RESTRICT k_block, int head_dim,
                              int tokens, float /*scale*/, const void* const* /*ahead*/, float* HWY_RESTRICT logits) {
  // As many vectors of tokens as leave room for the keys in registers.
  constexpr int kVectors = kRows * 4 <= kRegisters / 2 ? 4 : 2;
  constexpr int kSliceWords = kSlice / Words::kPerWord;
  const DF d;
  const DU du;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int words = head_dim / Words::kPerWord;
  for (int t = 0; t < tokens; t += kVectors * lanes) {
    const uint32_t* HWY_RESTRICT k = k_block + t;
    for (int slice = 0; slice < words; slice += kSliceWords) {
      const int end = std::min(slice + kSliceWords, words);
      VF acc[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
      }
      for (int w = slice; w < end; ++w, k += kBlockTokens) {
        hn::Vec<DU> stored[kVectors];
        for (int v = 0; v < kVectors; ++v) stored[v] = hn::Load(du, k + v * lanes);
        for (int i = 0; i < Words::kPerWord; ++i) {
          VF keys[kVectors];
          for (int v = 0; v < kVectors; ++v) keys[v] = Words::element(stored[v], i);
          for (int r = 0; r < kRows; ++r) {
            const auto query = hn::Set(d, q[r * head_dim + w * Words::kPerWord + i]);
            for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(query, keys[v], acc[r][v]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          float* to = logits + r * kBlockTokens + t + v * lanes;
          hn::Store(slice == 0 ? acc[r][v] : hn::Add(hn::Load(d, to), acc[r][v]), d, to);
        }
      }
    }
  }
}

// One pass over kPairs pairs of vectors of the head dim (or half a pair, for a head dim of an odd number of vectors).
template <class Format, int kRows, int kPairs>
HWY_INLINE void outputs_slice(const float* HWY_RESTRICT weights, const void* const* v_rows, const void* const* ahead,
                              int begin, int end, int head_dim, int first, const float* HWY_RESTRICT alpha,
                              float* HWY_RESTRICT o) {
  using T = typename Format::T;
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int kLines = std::max<int>(1, 2 * kPairs * lanes * static_cast<int>(sizeof(T)) / 64);
  VF acc[kRows][2 * kPairs];
  for (int r = 0; r < kRows; ++r) {
    const auto scale = hn::Set(d, alpha[r]);
    for (int v = 0; v < 2 * kPairs; ++v) {
      acc[r][v] = hn::Mul(hn::Load(d, o + r * head_dim + first + v * lanes), scale);
    }
  }
  for (int t = begin; t < end; ++t) {
    const T* row = static_cast<const T*>(v_rows[t]) + first;
    for (int line = 0; line < kLines; ++line) {
      prefetch(ahead[t], static_cast<size_t>(first) * sizeof(T) + static_cast<size_t>(line) * 64);
    }
    VF values[2 * kPairs];
    for (int c = 0; c < kPairs; ++c) Format::load2(row + 2 * c * lanes, values[2 * c], values[2 * c + 1]);
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, weights[r * kBlockTokens + t]);
      for (int v = 0; v < 2 * kPairs; ++v) acc[r][v] = hn::MulAdd(weight, values[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kPairs; ++v) hn::Store(acc[r][v], d, o + r * head_dim + first + v * lanes);
  }
}

template <class Format, int kRows>
HWY_NOINLINE void outputs_pass(const float* HWY_RESTRICT weights, const void* const* v_rows, const void* const* ahead,
                               int begin, int end, int head_dim, const float* HWY_RESTRICT alpha,
                               float* HWY_RESTRICT o) {
  // Accumulators take at most three quarters of the registers.
  constexpr int kPairs = std::clamp(kRegisters * 3 / 4 / (2 * kRows), 1, 4);
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int first = 0;
  for (; first + 2 * kPairs * lanes <= head_dim; first += 2 * kPairs * lanes) {
    outputs_slice<Format, kRows, kPairs>(weights, v_rows, ahead, begin, end, head_dim, first, alpha, o);
  }
  if constexpr (kPairs > 1) {
    for (; first + 2 * lanes <= head_dim; first += 2 * lanes) {
      outputs_slice<Format, kRows, 1>(weights, v_rows, ahead, begin, end, head_dim, first, alpha, o);
    }
  }
  if (first == head_dim) return;
  using T = typename Format::T;
  for (int r = 0; r < kRows; ++r) {
    float* HWY_RESTRICT to = o + r * head_dim + first;
    auto acc = hn::Mul(hn::Load(d, to), hn::Set(d, alpha[r]));
    for (int t = begin; t < end; ++t) {
      acc = hn::MulAdd(hn::Set(d, weights[r * kBlockTokens + t]),
                       Format::load1(static_cast<const T*>(v_rows[t]) + first), acc);
    }
    hn::Store(acc, d, to);
  }
}

// row[i] = o[i] / divisor, in the order of the elements.
template <class Format>
HWY_NOINLINE void finish_row(const float* HWY_RESTRICT o, int head_dim, float divisor, float* HWY_RESTRICT row) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto by = hn::Set(d, divisor);
  int i = 0;
  for (; i + 2 * lanes <= head_dim; i += 2 * lanes) {
    Format::store2(hn::Div(hn::Load(d, o + i), by), hn::Div(hn::Load(d, o + i + lanes), by), row + i);
  }
  if (i < head_dim) hn::StoreU(hn::Div(hn::Load(d, o + i), by), d, row + i);
}

template <class Format>
HWY_NOINLINE bool any_not_finite(const void* row, int head_dim) {
  using T = typename Format::T;
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto zeros = hn::Zero(d);  // x * 0 is 0 for a finite x and NaN otherwise
  for (int i = 0; i < head_dim; i += lanes) {
    zeros = hn::MulAdd(Format::load1(static_cast<const T*>(row) + i), hn::Zero(d), zeros);
  }
  return !hn::AllFalse(d, hn::IsNaN(zeros));
}

template <class Format>
HWY_NOINLINE void expand_row(const void* row, int head_dim, float* HWY_RESTRICT to) {
  using T = typename Format::T;
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < head_dim; i += lanes) hn::StoreU(Format::load1(static_cast<const T*>(row) + i), d, to + i);
}

// row_logits takes head dims that are multiples of this.
inline constexpr int kRowLogitsHeadDim = 32;

// What depends on the storage type, as functions, so that the rest is compiled once.
struct FormatOps {
  int element_bits;  // in the pool
  void (*pack_keys)(const void* const* rows, const void* const* ahead, int ahead_step, int tokens, int head_dim,
                    uint32_t* block);
  int ahead_step;  // pack_keys fetches each ahead_step-th cache line of the next block's keys, logits the others
  LogitsFn logits[kRowsPerPass];    // by rows - 1
  OutputsFn outputs[kRowsPerPass];  // by rows - 1
  void (*finish_row)(const float* o, int head_dim, float divisor, float* row);
  bool (*any_not_finite)(const void* row, int head_dim);
  void (*expand_row)(const void* row, int head_dim, float* to);
  RowOutputsFn row_outputs[kRowsPerPass];                   // null: none, as row_logits
  RowLogitsFn row_logits[kRowsPerPass];                     // null: none; logits without pack_keys
  void (*round_queries)(float* q, int rows, int head_dim);  // null: queries stay fp32 and are scaled beforehand
  // Null unless quantized. Then rows become bf16 by this first, which all of the above read: expand_block().
  void (*expand_block)(const void** rows, const void* const* ahead, int tokens, int head_dim, uint16_t* to);
  PackValuesFn pack_values;                      // null: none
  PackedOutputsFn packed_outputs[kRowsPerPass];  // by rows - 1
};

template <class Format, class Words, int... kRows>
constexpr FormatOps make_format_ops(std::integer_sequence<int, kRows...>) {
  return {static_cast<int>(sizeof(typename Format::T)) * 8,
          &pack_keys<Format>,
          1,
          {&logits_pass<Words, kRows + 1>...},
          {&outputs_pass<Format, kRows + 1>...},
          &finish_row<Format>,
          &any_not_finite<Format>,
          &expand_row<Format>,
          {},
          {},
          nullptr,
          nullptr,
          nullptr,
          {}};
}

// Quantized pools: their numbers are exact in bf16, whose products these are; scales are applied to logits and weights.
template <class Codes>
FormatOps quantized_ops(FormatOps bf16) {
  bf16.element_bits = static_cast<int>(sizeof(typename Codes::Pair)) * 4;
  bf16.expand_block = &expand_block<Codes>;
  return bf16;
}

// The functions for bf16 pools with the products by instructions for bf16 pairs, where there are any.
inline FormatOps with_bf16_products(FormatOps ops) {
#if HWY_TARGET <= HWY_AVX3
  static_assert(kRowsPerPass == kMaxRowsPerPass);
  if (const Bf16AttentionKernels* kernels = bf16_attention_kernels(); kernels != nullptr) {
    std::copy(kernels->logits, kernels->logits + kRowsPerPass, ops.logits);
    std::copy(kernels->outputs, kernels->outputs + kRowsPerPass, ops.outputs);
    std::copy(kernels->row_outputs, kernels->row_outputs + kRowsPerPass, ops.row_outputs);
    std::copy(kernels->row_logits, kernels->row_logits + kRowsPerPass, ops.row_logits);
    ops.pack_values = kernels->pack_values;
    std::copy(kernels->packed_outputs, kernels->packed_outputs + kRowsPerPass, ops.packed_outputs);
    ops.finish_row = kernels->finish_row;
    ops.ahead_step = 2;
    ops.round_queries = kernels->round_queries;
  }
#endif
  return ops;
}

#if defined(FOVEA_VARIANT_OBJECT)
// A variant that is compiled at run time gets it from the program that loads it (variant_compiler.cc): the kernels of
// the formats are most of what there is to compile, and no variant changes them.
inline const FormatOps& (*format_ops)(abi::KvDType dtype, AttentionProducts products) = nullptr;
#else
HWY_INLINE const FormatOps& format_ops(abi::KvDType dtype, AttentionProducts products) {
  using Rows = std::make_integer_sequence<int, kRowsPerPass>;
  static constexpr FormatOps kF32 = make_format_ops<FormatF32, WordsF32>(Rows());
  static constexpr FormatOps kF16 = make_format_ops<FormatF16, WordsF32>(Rows());
  static constexpr FormatOps kBF16 = make_format_ops<FormatBF16, WordsBF16>(Rows());
  static const FormatOps kBF16Products = with_bf16_products(kBF16);
  static const FormatOps kQuantized[2][3] = {
      {quantized_ops<CodesE4M3>(kBF16), quantized_ops<CodesI8>(kBF16), quantized_ops<CodesI4>(kBF16)},
      {quantized_ops<CodesE4M3>(kBF16Products), quantized_ops<CodesI8>(kBF16Products),
       quantized_ops<CodesI4>(kBF16Products)}};
  const bool bf16_products = products == AttentionProducts::kBF16;
  switch (dtype) {
    case abi::KvDType::kF32: return kF32;
    case abi::KvDType::kF16: return kF16;
    case abi::KvDType::kBF16: break;
    case abi::KvDType::kF8E4M3: return kQuantized[bf16_products][0];
    case abi::KvDType::kI8: return kQuantized[bf16_products][1];
    case abi::KvDType::kI4: return kQuantized[bf16_products][2];
  }
  return bf16_products ? kBF16Products : kBF16;
}
#endif

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_CPU_ATTENTION_MATMUL_INL_H_
