// Matrix products on a device, by cuBLASLt. Used by backends for linear layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/device.h"

namespace fovea::cuda {

enum class MatmulType : std::uint8_t { kF16, kBF16, kF32, kE4M3 };

// y = x * transposed(w) + bias, accumulated in fp32. x [rows, in], w [out, in], y [rows, out]; the last dim is
// contiguous.
struct MatmulSpec {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t x_stride = 0;              // elements from row to row, at least `in`
  std::int64_t w_stride = 0;              // at least `in`
  std::int64_t y_stride = 0;              // at least `out`
  MatmulType type = MatmulType::kBF16;    // of x and w: kF16, kBF16 or kE4M3
  MatmulType y_type = MatmulType::kBF16;  // the same, or kF32; of kE4M3 any but that
  bool bias = false;                      // [out] of y's type is added to every row
  bool row_scales = false;                // of kE4M3: every row of x and of w is multiplied by its own
  // The order of a row's sums is the same however many rows there are: one algorithm for all, which divides no sum.
  bool fixed = false;

  bool operator==(const MatmulSpec&) const = default;
};

// With row_scales: f32, one a row each. Device memory.
struct MatmulScales {
  const float* x = nullptr;
  const float* w = nullptr;
};

// Products on one device, for one stream at a time: they share a workspace. Which algorithm is best is asked once a
// spec.
class Matmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  static Result<Matmul> create(const Device& device, std::size_t workspace_bytes = kWorkspaceBytes);
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;
  ~Matmul();

  // x, w, y, bias: device memory, aligned to their elements (16 bytes are faster). rows may be 0: then nothing happens.
  // kInvalidArgument: sizes, strides or types; kUnsupported: the library has no algorithm for it.
  Status run(const MatmulSpec& spec, const void* x, const void* w, void* y, StreamHandle stream,
             const void* bias = nullptr, const MatmulScales& scales = {});

 private:
  struct State;
  explicit Matmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace fovea::cuda
