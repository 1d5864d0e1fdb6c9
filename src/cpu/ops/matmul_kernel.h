// The inner kernels of matmul.cc: how they are called, and the table of them that each SIMD target fills.
#pragma once

#include <cstdint>

#include "fovea/dtype.h"

namespace fovea::cpu {

// One call: a tile of `rows` outputs rows by a few vectors of columns, over k in [0, k_count).
struct MatmulTile {
  const float* x;  // element (row r, k) at x[r * x_row_stride + k * x_k_stride]
  std::int64_t x_row_stride;
  std::int64_t x_k_stride;
  const void* panels;         // of the first panel, at the first k
  std::int64_t panel_stride;  // elements from one panel to the next
  std::int64_t num_panels;    // panels of this tile
  std::int64_t k_count;
  float* y;  // output (row 0, first column of the first panel)
  std::int64_t y_stride;
  std::int64_t columns;  // columns of y that exist from there on; panels are padded, y is not
  bool accumulate;       // start from y instead of 0
  const float* bias;     // added at the end, or null; at the first column of the first panel
};

struct MatmulKernels {
  void (*tile)(DType dtype, int rows, const MatmulTile& tile);
  int max_rows;        // rows a tile may have
  int panels_one_row;  // panels that one call should take for a single row, to have enough independent chains
};

// Kernels of the SIMD target in use.
MatmulKernels matmul_kernels();

}  // namespace fovea::cpu
