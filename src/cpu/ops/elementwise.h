// Operators between matrix products: norms, gated activations, embedding, addition and soft-cap, all in fp32 over rows
// that may be strided. Called by the CPU backend, which checks shapes; threaded when there is enough to do.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "fovea/dtype.h"

namespace fovea::cpu {

// Element (row, head, i) stands at data[row * row_stride + head * head_stride + i].
struct HeadRows {
  float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  float* at(std::int64_t row, std::int64_t head) const { return data + row * row_stride + head * head_stride; }
};

// out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), over dim elements, for each of rows x heads. Where
// residual has data, residual += x first and the norm is of that sum. out may be x or residual.
struct RmsNorm {
  HeadRows x, residual, out;
  std::int64_t rows, heads, dim;
  const void* weight;
  DType weight_dtype;  // bf16, f16 or f32
  float weight_offset;
  float eps;
};
void rms_norm(const RmsNorm& norm, ThreadPool& pool);

enum class GateKind : std::uint8_t { kSilu, kGeluTanh, kGelu };
// out[r, i] = act(gate_up[r, i]) * gate_up[r, width + i]
void gated_activation(GateKind kind, const float* gate_up, std::int64_t gate_up_stride, std::int64_t rows,
                      std::int64_t width, float* out, std::int64_t out_stride, ThreadPool& pool);

// out[r] = scale * table[ids[r]]; ids are valid rows of the table.
void embed(const void* table, DType dtype, std::int64_t table_stride, const std::int32_t* ids, std::int64_t rows,
           std::int64_t dim, float scale, float* out, std::int64_t out_stride, ThreadPool& pool);

// x += y
void add(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride, std::int64_t rows, std::int64_t dim,
         ThreadPool& pool);

// x = cap * tanh(x / cap)
void softcap(float* x, std::int64_t stride, std::int64_t rows, std::int64_t dim, float cap, ThreadPool& pool);

// Rotates x in place, NeoX halves: dims i and i + half are a pair, for i < half. cos_sin: [rows][2 * half], cosines
// first.
void rotate(const HeadRows& x, const float* cos_sin, std::int64_t rows, std::int64_t heads, std::int64_t half,
            ThreadPool& pool);

}  // namespace fovea::cpu
