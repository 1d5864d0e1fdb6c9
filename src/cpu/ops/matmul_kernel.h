// The inner kernels of matmul.cc: how they are called, and where to get those of the machine.
#pragma once

#include <cstdint>

#include "fovea/dtype.h"

namespace fovea::cpu {

// Steps of k in a piece of packed x, which is also the distance of its rows (in bf16, half as many words). A constant,
// so that tiles of many rows address all of them from one register.
inline constexpr std::int64_t kPackedStride = 256;
// Tiles of more rows than this read packed x; x_stride is kPackedStride then.
inline constexpr int kUnpackedRows = 4;

// A tile of output rows by some panels of 32 columns, over k in [0, k_count).
struct MatmulTile {
  const float* x;            // element (row r, k) at x[r * x_stride + k]
  std::int64_t x_stride;     // floats
  const void* panels;        // the first panel, at the first k, which is even
  std::int64_t panel_bytes;  // from one panel to the next
  std::int64_t num_panels;   // panels of this tile
  std::int64_t k_count;
  float* y;  // output (row 0, first column of the first panel)
  std::int64_t y_stride;
  std::int64_t columns;  // columns of y that exist from there on; panels are padded, y is not
  bool accumulate;       // start from y instead of 0
  const float* bias;     // added at the end, or null; at the first column of the first panel
  const float* scales;   // sums are multiplied by them before that, or null; at the same column
};

struct MatmulKernels {
  void (*tile)(DType dtype, int rows, const MatmulTile& tile);
  int max_rows;        // rows a tile may have
  int panels_one_row;  // panels that one call should take for a single row, to have enough independent chains
};

// An e4m3 number shifted to where f16 has its exponent reads as this much less; scales of e4m3 weights make up for it.
inline constexpr float kE4m3Factor = 256.0f;

// Kernels of the SIMD target in use.
MatmulKernels matmul_kernels();

// Products of bf16 pairs (AVX512_BF16): twice the rate of fp32, for weights of bf16, or of e4m3 that were expanded.
struct Bf16Kernels {
  // x of the tile is packed; it points to words that hold x[k] and x[k + 1] in bf16, k even; k_count may be odd.
  void (*tile)(int rows, const MatmulTile& tile);
  // count floats (any number; the last word is padded with 0) -> words.
  void (*convert)(const float* x, std::int64_t count, std::uint32_t* words);
  // k_count steps of a panel of e4m3 -> of bf16, divided by kE4m3Factor, which is exact.
  void (*expand)(const std::uint8_t* panel, std::int64_t k_count, std::uint32_t* words);
  int max_rows;
  int (*panels_at_once)(int rows);  // that one call should take, for memory and chains enough
};

// Null functions where the CPU, or the SIMD target in use, has no such instruction.
Bf16Kernels bf16_kernels();

}  // namespace fovea::cpu
