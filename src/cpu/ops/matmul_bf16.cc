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
constexpr int kLanes = 16;
constexpr int kAccumulators = 24;  // of 32 registers

__mmask16 columns_mask(std::int64_t columns) {
  return columns >= 16 ? 0xffff : columns <= 0 ? 0 : static_cast<__mmask16>((1u << columns) - 1u);
}

__m512 dot_pairs(__m512 sum, __m512i weights, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(x));
}

// Panels [panel, panel + kPanels): kRows x 32 kPanels outputs.
template <int kRows, int kPanels>
void run_panels(const MatmulTile& t, std::int64_t panel) {
  const std::uint32_t* words[kPanels];
  __mmask16 masks[2 * kPanels];
  float* const y = t.y + panel * kPanelWidth;
  __m512 sum[kRows][2 * kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    words[p] = reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint8_t*>(t.panels) +
                                                      (panel + p) * t.panel_bytes);
    masks[2 * p] = columns_mask(t.columns - (panel + p) * kPanelWidth);
    masks[2 * p + 1] = columns_mask(t.columns - (panel + p) * kPanelWidth - 16);
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * kPanels; ++v) {
      sum[r][v] = t.accumulate ? _mm512_maskz_loadu_ps(masks[v], y + r * t.y_stride + v * kLanes) : _mm512_setzero_ps();
    }
  }
  const auto* x = reinterpret_cast<const std::int32_t*>(t.x);
  const std::int64_t pairs = (t.k_count + 1) / 2;
  for (std::int64_t k = 0; k < pairs; ++k) {
    __m512i weights[2 * kPanels];
#pragma GCC unroll 8
    for (int v = 0; v < 2 * kPanels; ++v) {
      weights[v] = _mm512_loadu_si512(words[v / 2] + k * kPanelWidth + v % 2 * kLanes);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i pair = _mm512_set1_epi32(x[r * (kPackedStride / 2) + k]);
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kPanels; ++v) sum[r][v] = dot_pairs(sum[r][v], weights[v], pair);
    }
  }
  const std::int64_t column = panel * kPanelWidth;
#pragma GCC unroll 8
  for (int v = 0; v < 2 * kPanels; ++v) {
    const std::int64_t at = column + v * kLanes;
    const __m512 scales = t.scales == nullptr ? _mm512_set1_ps(1.0f) : _mm512_maskz_loadu_ps(masks[v], t.scales + at);
    const __m512 bias = t.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(masks[v], t.bias + at);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      if (t.scales != nullptr) sum[r][v] = _mm512_mul_ps(sum[r][v], scales);
      if (t.bias != nullptr) sum[r][v] = _mm512_add_ps(sum[r][v], bias);
      _mm512_mask_storeu_ps(y + r * t.y_stride + v * kLanes, masks[v], sum[r][v]);
    }
  }
}

// Several panels at once where rows are few, so that enough of memory is read at a time and enough sums are under way.
constexpr int panels_at_once(int rows) { return std::clamp(kAccumulators / (2 * rows), 1, 4); }

template <int kRows>
void run_rows(const MatmulTile& t) {
  constexpr int kPanels = panels_at_once(kRows);
  std::int64_t panel = 0;
  for (; panel + kPanels <= t.num_panels; panel += kPanels) run_panels<kRows, kPanels>(t, panel);
  for (; panel < t.num_panels; ++panel) run_panels<kRows, 1>(t, panel);
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
  if (has_instruction && simd_target() == "avx512") return {&tile, &convert, &expand, kMaxRows, &panels_at_once};
#endif
  return {};
}

}  // namespace fovea::cpu
