// Logits of few rows straight from the keys as they lie in the pool: products along the head dim, then sums across the
// lanes, sixteen at a time. What matmul_inl.h takes for narrow tiles in place of packing keys. AVX512_BF16 intrinsics.
#include "cpu/attention/bf16_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// The intrinsics of GCC 12 leave a vector that they do not use uninitialized.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace fovea::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kStep = 16;          // tokens at once
constexpr int kLineElements = 32;  // bf16 values of a vector and of a cache line
constexpr int kRowsAtOnce = 4;

__m512d as_double(__m512 x) { return _mm512_castps_pd(x); }
__m512 as_float(__m512d x) { return _mm512_castpd_ps(x); }

// Sums across lanes of four vectors at once: each 16-byte block of the result holds, of the same blocks of a, b, c and
// d, the sums.
__m512 sum_in_blocks(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(as_float(_mm512_unpacklo_pd(as_double(ab), as_double(cd))),
                       as_float(_mm512_unpackhi_pd(as_double(ab), as_double(cd))));
}

__m512 sum_block_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0b10'00'10'00), _mm512_shuffle_f32x4(a, b, 0b11'01'11'01));
}

// Block i of the result is the sum of the four blocks of u[i].
__m512 sum_blocks(const __m512 (&u)[4]) {
  return sum_block_pairs(sum_block_pairs(u[0], u[1]), sum_block_pairs(u[2], u[3]));
}

struct Queries {
  const float* rows;  // as round_queries left them
  int head_dim;
  __m512i at(int row, int vector) const { return _mm512_loadu_si512(rows + row * head_dim + vector * kLanes); }
};

// How many (token, row) sums share a 16-byte block: kPerToken rows of each token, 4 / kPerToken tokens.
template <int kRows>
constexpr int kPerToken = kRows == 3 ? 4 : kRows;

// The sums of four lanes of a block from the tokens rows[0 ..).
template <int kRows, int kVectors>
__m512 dot_rows(const Queries& q, const __m512i (&held)[kRows][4], int vectors, const void* const* rows,
                const FetchAhead& ahead) {
  constexpr int kTokens = 4 / kPerToken<kRows>;
  __m512 sum[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int j = 0; j < kTokens; ++j) {
    const auto* key = static_cast<const std::uint16_t*>(rows[j]);
    const auto* early = static_cast<const std::uint16_t*>(rows[j + ahead.early_tokens]);
    const auto* late = static_cast<const std::uint16_t*>(rows[j + ahead.late_tokens]);
    const int count = kVectors > 0 ? kVectors : vectors;
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      const __m512i keys = _mm512_loadu_si512(key + v * kLineElements);
      __builtin_prefetch(early + v * kLineElements, 0, 3);
      __builtin_prefetch(late + v * kLineElements, 0, 3);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m512& to = sum[j * kPerToken<kRows> + r];
        const __m512i query = kVectors > 0 ? held[r][v] : q.at(r, v);
        to = _mm512_dpbf16_ps(to, reinterpret_cast<const __m512bh&>(keys), reinterpret_cast<const __m512bh&>(query));
      }
    }
  }
  return sum_in_blocks(sum[0], sum[1], sum[2], sum[3]);
}

// Writes the 16 logits of a step, four from each run, to each row of `logits`. Lane 4 u + j of sums[i] is row
// j % kPerToken of token i * (4 / kPerToken) + j / kPerToken of the u-th run's four.
template <int kRows>
void store_logits(const __m512 (&sums)[kPerToken<kRows>], __m512 scale, float* logits) {
  const auto store = [&](int row, __m512 x) {
    if (row < kRows) _mm512_store_ps(logits + row * kBlockTokens, _mm512_mul_ps(x, scale));
  };
  if constexpr (kPerToken<kRows> == 1) {
    store(0, sums[0]);
  } else if constexpr (kPerToken<kRows> == 2) {
    store(0, _mm512_shuffle_ps(sums[0], sums[1], 0b10'00'10'00));
    store(1, _mm512_shuffle_ps(sums[0], sums[1], 0b11'01'11'01));
  } else {
    const __m512d low01 = as_double(_mm512_unpacklo_ps(sums[0], sums[1]));
    const __m512d low23 = as_double(_mm512_unpacklo_ps(sums[2], sums[3]));
    const __m512d high01 = as_double(_mm512_unpackhi_ps(sums[0], sums[1]));
    const __m512d high23 = as_double(_mm512_unpackhi_ps(sums[2], sums[3]));
    store(0, as_float(_mm512_unpacklo_pd(low01, low23)));
    store(1, as_float(_mm512_unpackhi_pd(low01, low23)));
    store(2, as_float(_mm512_unpacklo_pd(high01, high23)));
    store(3, as_float(_mm512_unpackhi_pd(high01, high23)));
  }
}

// From the order of a whole block's steps, each four tokens from each stream, to the order of the tokens.
void sort_logits(float* logits) {
  __m512 step[4], pairs[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) step[i] = _mm512_load_ps(logits + i * kLanes);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    pairs[2 * i] = _mm512_shuffle_f32x4(step[2 * i], step[2 * i + 1], 0b01'00'01'00);
    pairs[2 * i + 1] = _mm512_shuffle_f32x4(step[2 * i], step[2 * i + 1], 0b11'10'11'10);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    _mm512_store_ps(logits + 2 * i * kLanes, _mm512_shuffle_f32x4(pairs[i], pairs[i + 2], 0b10'00'10'00));
    _mm512_store_ps(logits + (2 * i + 1) * kLanes, _mm512_shuffle_f32x4(pairs[i], pairs[i + 2], 0b11'01'11'01));
  }
}

// Logits of 16 tokens: four from each of four runs, run_rows apart. kVectors: 4 with the queries held in registers
// (head_dim 128), 0 for any multiple of 32.
template <int kRows, int kVectors>
void logits_step(const Queries& q, const void* const* rows, int run_rows, __m512 scale, float* logits) {
  constexpr int kTokens = 4 / kPerToken<kRows>;
  const FetchAhead ahead(q.head_dim);
  __m512i held[kRows][4];
  if constexpr (kVectors > 0) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) held[r][v] = q.at(r, v);
    }
  }
  __m512 sums[kPerToken<kRows>];
#pragma GCC unroll 4
  for (int i = 0; i < kPerToken<kRows>; ++i) {
    __m512 unit[4];
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      unit[u] =
          dot_rows<kRows, kVectors>(q, held, q.head_dim / kLineElements, rows + u * run_rows + i * kTokens, ahead);
    }
    sums[i] = sum_blocks(unit);
  }
  store_logits<kRows>(sums, scale, logits);
}

template <int kRows>
void row_logits(const float* q, const StreamRows& keys, int head_dim, int tokens, float scale, float* logits) {
  const __m512 by = _mm512_set1_ps(scale);
  const int run_rows = keys.whole ? StreamRows::kAStream : 4;
  const int advance = keys.whole ? 4 : kStep;
  const void* const* rows = keys.rows;
  for (int t = 0; t < tokens; t += kStep, rows += advance) {
    constexpr int kFirst = kRows < kRowsAtOnce ? kRows : kRowsAtOnce;
    const auto take = [&]<int kVectors>() {
      logits_step<kFirst, kVectors>({q, head_dim}, rows, run_rows, by, logits + t);
      if constexpr (kRows > kFirst) {
        logits_step<kRows - kFirst, kVectors>({q + kFirst * head_dim, head_dim}, rows, run_rows, by,
                                              logits + kFirst * kBlockTokens + t);
      }
    };
    if (head_dim == 4 * kLineElements) {
      take.template operator()<4>();
    } else {
      take.template operator()<0>();
    }
  }
  for (int r = 0; keys.whole && r < kRows; ++r) sort_logits(logits + r * kBlockTokens);
}

}  // namespace

const RowLogitsFn kBf16RowLogits[kMaxRowsPerPass] = {&row_logits<1>, &row_logits<2>, &row_logits<3>, &row_logits<4>,
                                                     &row_logits<5>, &row_logits<6>, &row_logits<7>, &row_logits<8>};

}  // namespace fovea::cpu
#pragma GCC pop_options
#endif
