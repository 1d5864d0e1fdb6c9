// Products of bf16 pairs with AVX512_BF16. Written with intrinsics because the Highway versions that distributions ship
// do not have the instruction. Note: it flushes subnormal inputs and results to zero.
#include "cpu/attention/bf16_kernels.h"

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace fovea::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kLineElements = 32;  // bf16 values of a cache line
constexpr int kPairsOfTokens = kBlockTokens / 2;
constexpr int kStepTokens = 16;    // of values, where one pass does not take the whole head dim
constexpr int kAccumulators = 24;  // of 32 registers

__m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

__m512i round_pairs(const float* x) {
  const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + kLanes), _mm512_loadu_ps(x));
  return reinterpret_cast<const __m512i&>(halves);
}

// Writes 16 elements as pairs; returns them one a word.
__m512i round_half(__m512 x, float* pairs) {
  const __m256bh halves = _mm512_cvtneps_pbh(x);
  const auto& bits = reinterpret_cast<const __m256i&>(halves);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), bits);
  return _mm512_cvtepu16_epi32(bits);
}

void round_queries(float* q, int rows, int head_dim) {
  alignas(64) float left[kMaxHeadDim];
  for (int r = 0; r < rows; ++r) {
    float* row = q + static_cast<std::size_t>(r) * static_cast<std::size_t>(head_dim);
    for (int d = 0; d < head_dim; d += kLanes) {
      const __m512 x = _mm512_loadu_ps(row + d);
      const __m512i rounded = round_half(x, row + d / 2);
      _mm512_store_ps(left + d, _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16))));
    }
    for (int d = 0; d < head_dim; d += kLanes) round_half(_mm512_load_ps(left + d), row + (head_dim + d) / 2);
  }
}

// Chains are head_dim / 2 instructions long: sums of bf16 products do not need the slices of the fp32 kernel.
template <int kRows>
void logits_pass(const float* q, const std::uint32_t* k_block, int head_dim, int tokens, float scale,
                 const void* const* ahead, float* logits) {
  constexpr int kVectors = kRows <= 4 ? 4 : 2;
  const auto* pairs = reinterpret_cast<const std::int32_t*>(q);
  const __m512 by = _mm512_set1_ps(scale);
  for (int t = 0; t < tokens; t += kVectors * kLanes) {
    const std::uint32_t* k = k_block + t;
    __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    for (int w = 0; w < head_dim / 2; ++w, k += kBlockTokens) {
      __m512i keys[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) keys[v] = _mm512_load_si512(k + v * kLanes);
      // Half of the next block's keys are asked for here: memory cannot take all requests while keys are packed.
      if (ahead != nullptr && w < kVectors * kLanes) {
        const auto* next = static_cast<const std::uint16_t*>(ahead[t + w]);
        for (int d = kLineElements; d < head_dim; d += 2 * kLineElements) __builtin_prefetch(next + d, 0, 2);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i query = _mm512_set1_epi32(pairs[r * head_dim + w]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = dot_pairs(sum[r][v], keys[v], query);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_ps(logits + r * kBlockTokens + t + v * kLanes, _mm512_mul_ps(sum[r][v], by));
      }
    }
  }
}

// What the value rows of a pair of tokens are where only one of the two counts.
alignas(64) constexpr std::uint16_t kZeroRow[kMaxHeadDim] = {};

const std::uint16_t* row_of(const void* p) { return static_cast<const std::uint16_t*>(p); }

// The value rows of a pair of tokens, and those to prefetch.
template <int kFetches>
struct PairRows {
  const std::uint16_t* even;
  const std::uint16_t* odd;
  const std::uint16_t* ahead[kFetches];
};

// Pairs in the order of the tokens.
struct ListedPairs {
  static constexpr int kFetches = 2;
  static constexpr int kLevel = 2;
  const PairRows<kFetches>* rows;
  const PairRows<kFetches>& at(int p) const { return rows[p]; }
};

// Pairs of a whole block: the p-th is the (p / kStreams)-th of stream p % kStreams.
struct StreamPairs {
  static constexpr int kFetches = 4;
  static constexpr int kLevel = 3;
  const void* const* rows;
  FetchAhead ahead;
  PairRows<kFetches> at(int p) const {
    const void* const* pair = rows + p % kStreams * StreamRows::kAStream + p / kStreams * 2;
    const void* const* early = pair + ahead.early_tokens;
    const void* const* late = pair + ahead.late_tokens;
    return {row_of(pair[0]), row_of(pair[1]), {row_of(early[0]), row_of(early[1]), row_of(late[0]), row_of(late[1])}};
  }
};

// kGroups groups of 32 elements of the head dim. The two rows are interleaved within 16-byte lanes: the first vector of
// a group holds elements 0-3, 8-11, 16-19 and 24-27 as pairs (even token, odd token), the second the others.
template <int kRows, int kGroups, typename Pairs>
void outputs_groups(const std::int32_t (*weights)[kPairsOfTokens], const Pairs& pairs, int begin, int end, int head_dim,
                    int first, const float* alpha, float* o) {
  __m512 sum[kRows][2 * kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(alpha[r]);
#pragma GCC unroll 8
    for (int v = 0; v < 2 * kGroups; ++v) {
      sum[r][v] = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + first + v * kLanes), scale);
    }
  }
  for (int p = begin; p < end; ++p) {
    const auto& pair = pairs.at(p);
    __m512i values[2 * kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
      for (int i = 0; i < Pairs::kFetches; ++i) {
        __builtin_prefetch(pair.ahead[i] + first + 32 * g, 0, Pairs::kLevel);
      }
      const __m512i even = _mm512_loadu_si512(pair.even + first + 32 * g);
      const __m512i odd = _mm512_loadu_si512(pair.odd + first + 32 * g);
      values[2 * g] = _mm512_unpacklo_epi16(even, odd);
      values[2 * g + 1] = _mm512_unpackhi_epi16(even, odd);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i weight = _mm512_set1_epi32(weights[r][p]);
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kGroups; ++v) sum[r][v] = dot_pairs(sum[r][v], values[v], weight);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * kGroups; ++v) _mm512_storeu_ps(o + r * head_dim + first + v * kLanes, sum[r][v]);
  }
}

// The last 16 elements of a head dim that is not a multiple of 32: 0-3, 8-11, 4-7, 12-15.
template <typename Pairs>
void outputs_tail(int num_rows, const std::int32_t (*weights)[kPairsOfTokens], const Pairs& pairs, int begin, int end,
                  int head_dim, int first, const float* alpha, float* o) {
  for (int r = 0; r < num_rows; ++r) {
    __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + first), _mm512_set1_ps(alpha[r]));
    for (int p = begin; p < end; ++p) {
      const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs.at(p).even + first));
      const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs.at(p).odd + first));
      const __m512i values = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_unpacklo_epi16(even, odd)),
                                                _mm256_unpackhi_epi16(even, odd), 1);
      sum = dot_pairs(sum, values, _mm512_set1_epi32(weights[r][p]));
    }
    _mm512_storeu_ps(o + r * head_dim + first, sum);
  }
}

// Weights of pairs [begin, end) times their rows, for the whole head dim.
template <int kRows, typename Pairs>
void outputs_pairs(const std::int32_t (*weights)[kPairsOfTokens], const Pairs& pairs, int begin, int end, int head_dim,
                   const float* alpha, float* o) {
  constexpr int kGroups = kRows * 8 <= kAccumulators ? 4 : kRows * 4 <= kAccumulators ? 2 : 1;
  // The values of a few tokens at a time, so that each part of the head dim finds them in the first level.
  constexpr int kPairsAtOnce = kGroups * 32 >= 128 ? kPairsOfTokens : kStepTokens / 2;
  alignas(64) float ones[kRows];
  std::fill(ones, ones + kRows, 1.0f);
  int p = begin;
  do {
    const int stop = std::min(end, (p / kPairsAtOnce + 1) * kPairsAtOnce);
    const float* by = p == begin ? alpha : ones;
    int d = 0;
    for (; d + 32 * kGroups <= head_dim; d += 32 * kGroups) {
      outputs_groups<kRows, kGroups>(weights, pairs, p, stop, head_dim, d, by, o);
    }
    for (; kGroups > 1 && d + 32 <= head_dim; d += 32) {
      outputs_groups<kRows, 1>(weights, pairs, p, stop, head_dim, d, by, o);
    }
    if (d < head_dim) outputs_tail(kRows, weights, pairs, p, stop, head_dim, d, by, o);
    p = stop;
  } while (p < end);
}

// Pairs are tokens 2p and 2p + 1 of the block, whatever `begin` is: that keeps a row's additions the same in every
// tile.
template <int kRows>
void outputs_pass(const float* weights, const void* const* v_rows, const void* const* ahead, int begin, int end,
                  int head_dim, const float* alpha, float* o) {
  alignas(64) std::int32_t rounded[kRows][kPairsOfTokens];
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_si512(rounded[r], round_pairs(weights + r * kBlockTokens));
    _mm512_store_si512(rounded[r] + kLanes, round_pairs(weights + r * kBlockTokens + 2 * kLanes));
  }
  PairRows<2> rows[kPairsOfTokens];
  const int first_pair = begin / 2;
  const int end_pair = (end + 1) / 2;
  for (int p = first_pair; p < end_pair; ++p) {
    rows[p] = {row_of(v_rows[2 * p]), row_of(v_rows[2 * p + 1]), {row_of(ahead[2 * p]), row_of(ahead[2 * p + 1])}};
  }
  if (begin % 2 != 0 && begin < end) rows[first_pair].even = kZeroRow;
  if (end % 2 != 0 && begin < end) rows[end_pair - 1].odd = kZeroRow;
  outputs_pairs<kRows>(rounded, ListedPairs{rows}, first_pair, end_pair, head_dim, alpha, o);
}

void pack_values(const void* const* v_rows, int head_dim, std::uint32_t* v_block) {
  for (int d = 0; d < head_dim; d += kPackedHeadDim) {
    for (int p = 0; p < kPairsOfTokens; ++p, v_block += 2 * kLanes) {
      const __m512i even = _mm512_loadu_si512(row_of(v_rows[2 * p]) + d);
      const __m512i odd = _mm512_loadu_si512(row_of(v_rows[2 * p + 1]) + d);
      _mm512_store_si512(v_block, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(v_block + kLanes, _mm512_unpackhi_epi16(even, odd));
    }
  }
}

// The additions of outputs_groups(), in its order.
template <int kRows>
void packed_outputs(const float* weights, const std::uint32_t* v_block, const void* const* ahead, int head_dim,
                    const float* alpha, float* o) {
  alignas(64) std::int32_t rounded[kRows][kPairsOfTokens];
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_si512(rounded[r], round_pairs(weights + r * kBlockTokens));
    _mm512_store_si512(rounded[r] + kLanes, round_pairs(weights + r * kBlockTokens + 2 * kLanes));
  }
  for (int d = 0; d < head_dim; d += kPackedHeadDim) {
    __m512 sum[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_set1_ps(alpha[r]);
      sum[r][0] = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + d), scale);
      sum[r][1] = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + d + kLanes), scale);
    }
    for (int p = 0; p < kPairsOfTokens; ++p, v_block += 2 * kLanes) {
      if (ahead != nullptr) {
        __builtin_prefetch(row_of(ahead[2 * p]) + d, 0, 2);
        __builtin_prefetch(row_of(ahead[2 * p + 1]) + d, 0, 2);
      }
      const __m512i low = _mm512_load_si512(v_block);
      const __m512i high = _mm512_load_si512(v_block + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i weight = _mm512_set1_epi32(rounded[r][p]);
        sum[r][0] = dot_pairs(sum[r][0], low, weight);
        sum[r][1] = dot_pairs(sum[r][1], high, weight);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(o + r * head_dim + d, sum[r][0]);
      _mm512_storeu_ps(o + r * head_dim + d + kLanes, sum[r][1]);
    }
  }
}

template <int kRows>
void row_outputs(const float* weights, const StreamRows& values, int head_dim, const float* alpha, float* o) {
  static_assert(kStreams == 4 && kStreamTokens == 16);
  const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  alignas(64) std::int32_t rounded[kRows][kPairsOfTokens];
  for (int r = 0; r < kRows; ++r) {
    const __m512i low = round_pairs(weights + r * kBlockTokens);
    const __m512i high = round_pairs(weights + r * kBlockTokens + 2 * kLanes);
    _mm512_store_si512(rounded[r], _mm512_permutex2var_epi32(low, first, high));
    _mm512_store_si512(rounded[r] + kLanes, _mm512_permutex2var_epi32(low, second, high));
  }
  const StreamPairs pairs{values.rows, FetchAhead(head_dim)};
  outputs_pairs<kRows>(rounded, pairs, 0, kPairsOfTokens, head_dim, alpha, o);
}

void finish_row(const float* o, int head_dim, float divisor, float* row) {
  const __m512 by = _mm512_set1_ps(divisor);
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  int d = 0;
  for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
    const __m512d first = _mm512_castps_pd(_mm512_div_ps(_mm512_loadu_ps(o + d), by));
    const __m512d second = _mm512_castps_pd(_mm512_div_ps(_mm512_loadu_ps(o + d + kLanes), by));
    _mm512_storeu_ps(row + d, _mm512_castpd_ps(_mm512_permutex2var_pd(first, low, second)));
    _mm512_storeu_ps(row + d + kLanes, _mm512_castpd_ps(_mm512_permutex2var_pd(first, high, second)));
  }
  if (d == head_dim) return;
  const __m512 tail = _mm512_div_ps(_mm512_loadu_ps(o + d), by);
  _mm512_storeu_ps(row + d, _mm512_shuffle_f32x4(tail, tail, 0b11'01'10'00));
}

template <int... kRows>
constexpr Bf16AttentionKernels make_kernels(std::integer_sequence<int, kRows...>) {
  return {&round_queries,
          {&logits_pass<kRows + 1>...},
          {&outputs_pass<kRows + 1>...},
          &pack_values,
          {&packed_outputs<kRows + 1>...},
          {&row_outputs<kRows + 1>...},
          {},
          &finish_row};
}

}  // namespace
}  // namespace fovea::cpu
#pragma GCC pop_options
#endif

namespace fovea::cpu {

const Bf16AttentionKernels* bf16_attention_kernels() {
#if defined(__x86_64__)
  static const Bf16AttentionKernels kKernels = [] {
    Bf16AttentionKernels kernels = make_kernels(std::make_integer_sequence<int, kMaxRowsPerPass>());
    std::copy(kBf16RowLogits, kBf16RowLogits + kMaxRowsPerPass, kernels.row_logits);
    return kernels;
  }();
  static const bool has_instruction =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_instruction) return &kKernels;
#endif
  return nullptr;
}

}  // namespace fovea::cpu
