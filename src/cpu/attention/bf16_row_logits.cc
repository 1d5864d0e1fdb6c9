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

// The sums of four lanes of a block, `token` the first.
template <int kRows, int kVectors>
__m512 dot_rows(const Queries& q, const __m512i (&held)[kRows][4], int vectors, const void* const* k_rows,
                const void* const* near, int token) {
  constexpr int kTokens = 4 / kPerToken<kRows>;
  __m512 sum[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int j = 0; j < kTokens; ++j) {
    const auto* key = static_cast<const std::uint16_t*>(k_rows[token + j]);
    const auto* next = static_cast<const std::uint16_t*>(near[token + j]);
    const int count = kVectors > 0 ? kVectors : vectors;
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      const __m512i keys = _mm512_loadu_si512(key + v * kLineElements);
      __builtin_prefetch(next + v * kLineElements, 0, 3);
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

// Rows and tokens of kPerToken vectors of sums put in order: logits[r * kBlockTokens + t] for kStep tokens.
template <int kRows>
void store_logits(const __m512 (&sums)[kPerToken<kRows>], __m512 scale, float* logits) {
  const auto store = [&](int row, __m512 x) {
    if (row < kRows) _mm512_store_ps(logits + row * kBlockTokens, _mm512_mul_ps(x, scale));
  };
  if constexpr (kPerToken<kRows> == 1) {
    store(0, sums[0]);
  } else if constexpr (kPerToken<kRows> == 2) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    store(0, _mm512_permutex2var_ps(sums[0], even, sums[1]));
    store(1, _mm512_permutex2var_ps(sums[0], _mm512_add_epi32(even, _mm512_set1_epi32(1)), sums[1]));
  } else {
    const __m512d low01 = as_double(_mm512_unpacklo_ps(sums[0], sums[1]));
    const __m512d low23 = as_double(_mm512_unpacklo_ps(sums[2], sums[3]));
    const __m512d high01 = as_double(_mm512_unpackhi_ps(sums[0], sums[1]));
    const __m512d high23 = as_double(_mm512_unpackhi_ps(sums[2], sums[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store(0, _mm512_permutexvar_ps(order, as_float(_mm512_unpacklo_pd(low01, low23))));
    store(1, _mm512_permutexvar_ps(order, as_float(_mm512_unpackhi_pd(low01, low23))));
    store(2, _mm512_permutexvar_ps(order, as_float(_mm512_unpacklo_pd(high01, high23))));
    store(3, _mm512_permutexvar_ps(order, as_float(_mm512_unpackhi_pd(high01, high23))));
  }
}

// kVectors: 4 with the queries held in registers (head_dim 128), 0 for any multiple of 32.
template <int kRows, int kVectors>
void logits_step(const Queries& q, const void* const* k_rows, const void* const* near, __m512 scale, float* logits) {
  constexpr int kTokens = 4 / kPerToken<kRows>;
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
      unit[u] = dot_rows<kRows, kVectors>(q, held, q.head_dim / kLineElements, k_rows, near, (4 * i + u) * kTokens);
    }
    sums[i] = sum_blocks(unit);
  }
  store_logits<kRows>(sums, scale, logits);
}

template <int kRows>
void row_logits(const float* q, const void* const* k_rows, int head_dim, int tokens, float scale,
                const void* const* near, const void* const* far_keys, const void* const* far_values, float* logits) {
  const __m512 by = _mm512_set1_ps(scale);
  for (int t = 0; t < tokens; t += kStep) {
    // The first lines of pages well ahead: their translation is then found before their lines are asked for.
    __builtin_prefetch(far_keys[t], 0, 2);
    __builtin_prefetch(far_values[t], 0, 2);
    constexpr int kFirst = kRows < kRowsAtOnce ? kRows : kRowsAtOnce;
    const auto step = [&]<int kVectors>() {
      logits_step<kFirst, kVectors>({q, head_dim}, k_rows + t, near + t, by, logits + t);
      if constexpr (kRows > kFirst) {
        logits_step<kRows - kFirst, kVectors>({q + kFirst * head_dim, head_dim}, k_rows + t, near + t, by,
                                              logits + kFirst * kBlockTokens + t);
      }
    };
    if (head_dim == 4 * kLineElements) {
      step.template operator()<4>();
    } else {
      step.template operator()<0>();
    }
  }
}

}  // namespace

const RowLogitsFn kBf16RowLogits[kMaxRowsPerPass] = {&row_logits<1>, &row_logits<2>, &row_logits<3>, &row_logits<4>,
                                                     &row_logits<5>, &row_logits<6>, &row_logits<7>, &row_logits<8>};

}  // namespace fovea::cpu
#pragma GCC pop_options
#endif
