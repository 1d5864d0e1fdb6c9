// Products of bf16 pairs with AVX512_BF16. Written with intrinsics because the Highway versions that distributions ship
// do not have the instruction. Note: it flushes subnormal inputs and results to zero.
#include <algorithm>
#include <array>
#include <utility>

#include "cpu/ops/matmul.h"
#include "cpu/ops/matmul_kernel.h"
#include "cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace fovea::cpu {
namespace {

constexpr int kMaxRows = 12;

__mmask16 columns_mask(std::int64_t columns) {
  return columns >= 16 ? 0xffff : columns <= 0 ? 0 : static_cast<__mmask16>((1u << columns) - 1u);
}

__m512 dot_pairs(__m512 sum, __m512i weights, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(x));
}

// One panel: kRows x 32 outputs.
template <int kRows>
void run_panel(const MatmulTile& t, std::int64_t panel) {
  const auto* words =
      reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint8_t*>(t.panels) + panel * t.panel_bytes);
  const auto* x = reinterpret_cast<const std::int32_t*>(t.x);
  const __mmask16 low_mask = columns_mask(t.columns - panel * kPanelWidth);
  const __mmask16 high_mask = columns_mask(t.columns - panel * kPanelWidth - 16);
  float* y = t.y + panel * kPanelWidth;
  __m512 low[kRows];
  __m512 high[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    low[r] = t.accumulate ? _mm512_maskz_loadu_ps(low_mask, y + r * t.y_stride) : _mm512_setzero_ps();
    high[r] = t.accumulate ? _mm512_maskz_loadu_ps(high_mask, y + r * t.y_stride + 16) : _mm512_setzero_ps();
  }
  const std::int64_t pairs = (t.k_count + 1) / 2;
  for (std::int64_t k = 0; k < pairs; ++k) {
    const __m512i weights_low = _mm512_loadu_si512(words + k * kPanelWidth);
    const __m512i weights_high = _mm512_loadu_si512(words + k * kPanelWidth + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i pair = _mm512_set1_epi32(x[r * (kPackedStride / 2) + k]);
      low[r] = dot_pairs(low[r], weights_low, pair);
      high[r] = dot_pairs(high[r], weights_high, pair);
    }
  }
  if (t.scales != nullptr) {
    const __m512 scales_low = _mm512_maskz_loadu_ps(low_mask, t.scales + panel * kPanelWidth);
    const __m512 scales_high = _mm512_maskz_loadu_ps(high_mask, t.scales + panel * kPanelWidth + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      low[r] = _mm512_mul_ps(low[r], scales_low);
      high[r] = _mm512_mul_ps(high[r], scales_high);
    }
  }
  if (t.bias != nullptr) {
    const __m512 bias_low = _mm512_maskz_loadu_ps(low_mask, t.bias + panel * kPanelWidth);
    const __m512 bias_high = _mm512_maskz_loadu_ps(high_mask, t.bias + panel * kPanelWidth + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      low[r] = _mm512_add_ps(low[r], bias_low);
      high[r] = _mm512_add_ps(high[r], bias_high);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_mask_storeu_ps(y + r * t.y_stride, low_mask, low[r]);
    _mm512_mask_storeu_ps(y + r * t.y_stride + 16, high_mask, high[r]);
  }
}

template <int kRows>
void run_rows(const MatmulTile& t) {
  for (std::int64_t panel = 0; panel < t.num_panels; ++panel) run_panel<kRows>(t, panel);
}

template <int... kRow>
constexpr std::array<void (*)(const MatmulTile&), sizeof...(kRow)> tile_table(std::integer_sequence<int, kRow...>) {
  return {&run_rows<kRow + 1>...};
}

void tile(int rows, const MatmulTile& t) {
  static constexpr auto kTable = tile_table(std::make_integer_sequence<int, kMaxRows>{});
  kTable[static_cast<std::size_t>(rows - 1)](t);
}

void convert(const float* x, std::int64_t count, std::uint32_t* words) {
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(words + i / 2, reinterpret_cast<const __m512i&>(halves));
  }
  if (i == count) return;
  const std::int64_t left = count - i;
  const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(columns_mask(left - 16), x + i + 16),
                                              _mm512_maskz_loadu_ps(columns_mask(left), x + i));
  _mm512_mask_storeu_epi32(words + i / 2, columns_mask((left + 1) / 2), reinterpret_cast<const __m512i&>(halves));
}

// 16 of e4m3, as F8Weight of matmul_kernel.cc reads them.
__m512i floats_of(const std::uint8_t* bytes) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  const __m256i size = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
  return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_or_si256(sign, size)));
}

void expand(const std::uint8_t* panel, std::int64_t k_count, std::uint32_t* words) {
  for (std::int64_t k = 0; k < k_count; k += 2) {
    const std::uint8_t* rows = panel + k * kPanelWidth;
    for (int half = 0; half < 32; half += 16) {
      const __m512i low = _mm512_srli_epi32(floats_of(rows + half), 16);
      _mm512_storeu_si512(words + k / 2 * kPanelWidth + half,
                          _mm512_or_si512(low, floats_of(rows + kPanelWidth + half)));
    }
  }
}

}  // namespace
}  // namespace fovea::cpu
#pragma GCC pop_options
#endif

namespace fovea::cpu {

Bf16Kernels bf16_kernels() {
#if defined(__x86_64__)
  static const bool has_instruction =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_instruction && simd_target() == "avx512") return {&tile, &convert, &expand, kMaxRows};
#endif
  return {nullptr, nullptr, nullptr, 0};
}

}  // namespace fovea::cpu
