// Parts of tensors as views, without a copy. Used where rows of a batch, or a rank's share of weights, go their own
// way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/tensor_view.h"

namespace fovea {

// The view so many elements further on; one of nothing stays as it is.
inline TensorView moved(TensorView view, std::int64_t elements) {
  if (view.data == nullptr) return view;
  view.data = static_cast<std::byte*>(view.data) + elements * dtype_bits(view.dtype) / 8;
  return view;
}

// Rows [begin, begin + count).
inline TensorView take_rows(const TensorView& whole, std::int64_t begin, std::int64_t count) {
  TensorView part = moved(whole, begin * whole.strides[0]);
  if (part.data != nullptr) part.shape[0] = count;
  return part;
}

}  // namespace fovea
