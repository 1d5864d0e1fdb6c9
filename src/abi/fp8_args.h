// Rows of e4m3 with a scale each: how scales are chosen, on the host and on devices, and the arguments of the kernels
// that write and read such rows (kernels/model/fp8_rows.cuh). Compiles under g++ and NVRTC.
#pragma once

#include "abi/op_args.h"

namespace fovea::abi {

// Of a row whose largest element is so large: that becomes 448, the largest of e4m3. Never so small that its inverse
// overflows.
constexpr float fp8_row_scale(float most) {
  const float scale = most * (1.0f / 448.0f);
  return scale > 1e-30f ? scale : 1e-30f;
}

// fovea_fp8_rows: a CTA a row of kOpThreads threads.
struct Fp8RowsArgs {
  const void* from;  // [rows, width], rows `stride` elements apart
  uint8_t* codes;    // [rows, width], contiguous
  float* scales;     // [rows]
  long long stride;
  uint32_t rows;
  uint32_t width;
};

// fovea_fp8_expand: to[r, i] = codes[r, i] * scales[r], rounded once; kOpThreads threads a CTA, an access a thread.
struct Fp8ExpandArgs {
  const uint8_t* codes;  // all contiguous
  const float* scales;
  void* to;
  uint32_t rows;
  uint32_t width;
};

// fovea_fp8_finish: what a product of e4m3 has left undone: y[r, i] = y[r, i] * row_scales[r] * column_scales[i] +
// bias[i]; kOpThreads threads a CTA, an access a thread.
struct Fp8FinishArgs {
  void* y;
  const float* row_scales;  // and the next: or null
  const float* column_scales;
  const void* bias;  // of y's type; or null
  long long stride;
  uint32_t rows;
  uint32_t width;
};

}  // namespace fovea::abi
