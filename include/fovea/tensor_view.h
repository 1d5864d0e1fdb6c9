// TensorView: a borrowed, strided, DLPack-shaped view of memory somebody else owns. Used by every public call.
#pragma once

#include <array>
#include <cstdint>

#include "fovea/dtype.h"

namespace fovea {

enum class DeviceKind : std::uint8_t { kCpu = 0, kCuda = 1 };

struct TensorView {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;
  DType dtype = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  std::int32_t device_index = 0;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};    // elements
  std::array<std::int64_t, kMaxRank> strides{};  // elements, not bytes

  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// A contiguous (row-major) view on the CPU. Rank is the number of dims given.
template <typename... Dims>
TensorView cpu_tensor(const void* data, DType dtype, Dims... dims) {
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.rank = sizeof...(dims);
  int i = 0;
  ((view.shape[i++] = static_cast<std::int64_t>(dims)), ...);
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}

}  // namespace fovea
