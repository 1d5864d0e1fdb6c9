// y = x W^T + b with fp32 activations and weights kept as bf16, f16, f32 or e4m3 with a scale an output feature. Called
// by the CPU backend's Linear.
//
// Weights are packed once into panels of 32 output features: panel p holds, for k = 0, 1, .., the 32 weights W[32 p ..,
// k] side by side (bf16: two k at a time). A kernel keeps a tile of outputs in registers and walks k in ascending
// order, so one row reads every weight once, at the speed of memory, and 12 rows share each weight that was loaded.
// Every output is the same chain of fused multiply-adds over k whatever the number of rows, threads or the SIMD width:
// results are batch invariant. With MatmulPrecision::kBf16 weights of bf16 make another chain, of pairs, twice as fast
// and the same for 1 to 127 rows; from there on oneDNN adds in its own order. e4m3 is expanded as it is loaded, and
// sums are multiplied by their scales at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/ops/aligned_buffer.h"
#include "cpu/ops/matmul_dnnl.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

inline constexpr std::int64_t kPanelWidth = 32;  // output features

enum class MatmulPrecision : std::uint8_t {
  kF32,   // x in fp32
  kBf16,  // x is rounded to bf16 first where the CPU multiplies pairs of it: for weights of bf16, and from 8 rows on
          // for e4m3
};

class PackedWeight {
 public:
  // parts: [out_features of the part, in_features] each, one type (bf16, f16, f32 or e4m3), stacked along out_features;
  // rows may be strided. Keeps a packed copy; with kBf16 parts of bf16 must outlive the weight as well, because oneDNN
  // reads them where they are. scales: of e4m3, one an output feature of all parts; else none. kResourceExhausted when
  // memory is short.
  static Result<PackedWeight> create(std::span<const TensorView> parts, MatmulPrecision precision, ThreadPool& pool,
                                     std::span<const float> scales = {});

  DType dtype() const { return dtype_; }
  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  // Bytes of a panel; k is padded to an even number.
  std::int64_t panel_bytes() const { return (in_features_ + 1) / 2 * 2 * kPanelWidth * (dtype_bits(dtype_) / 8); }
  std::int64_t num_panels() const { return (out_features_ + kPanelWidth - 1) / kPanelWidth; }
  const void* data() const { return data_.data(); }
  // What sums are multiplied by, [out_features]; null where nothing.
  const float* scales() const { return scales_.empty() ? nullptr : scales_.data(); }
  // For whole blocks of kDnnlRows rows; null where oneDNN is of no use.
  const DnnlProduct* dnnl() const { return dnnl_.get(); }
  std::size_t size_bytes() const { return data_.size_bytes(); }

 private:
  DType dtype_ = DType::kF32;
  std::int64_t in_features_ = 0;
  std::int64_t out_features_ = 0;
  AlignedBuffer data_;
  std::vector<float> scales_;
  std::unique_ptr<DnnlProduct> dnnl_;
};

// Memory that matmul() packs rows of x into; shared by all products of a backend, which run one at a time.
class MatmulScratch {
 public:
  // Makes room for products of up to in_features; called when weights are created, so that matmul() allocates nothing.
  Status reserve(std::int64_t in_features, int num_threads);
  float* data() const { return buffer_.as<float>(); }
  std::int64_t in_features() const { return in_features_; }
  int num_threads() const { return num_threads_; }

 private:
  std::int64_t in_features_ = 0;
  int num_threads_ = 0;
  AlignedBuffer buffer_;
};

// x: [rows, in_features] with x_stride elements a row; y: [rows, out_features] with y_stride; bias: [out_features] or
// null. scratch.in_features() >= weight.in_features().
void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, const PackedWeight& weight, const float* bias,
            float* y, std::int64_t y_stride, MatmulPrecision precision, const MatmulScratch& scratch, ThreadPool& pool);

}  // namespace fovea::cpu
