// Rows of a weight matrix rounded to e4m3, each with a scale of its own: its largest element becomes 448. Called by the
// CPU device's create_linear; kernels/model/fp8_rows.cuh does the same on CUDA devices.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// weight: [rows, width] of bf16, f16 or f32, rows may be strided; codes: [rows, width]; scales: [rows], what codes are
// to be multiplied by.
void quantize_rows(const TensorView& weight, std::uint8_t* codes, float* scales, ThreadPool& pool);

}  // namespace fovea::cpu
