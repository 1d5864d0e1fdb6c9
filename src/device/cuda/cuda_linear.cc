// Checks a product and enqueues it.
#include "device/cuda/cuda_linear.h"

#include "base/status.h"

namespace fovea {

Status FixedRows::reserve(const cuda::Device& device, std::int64_t in, std::int64_t out) {
  device_ = device;
  const auto room = [&](cuda::DeviceBuffer& buffer, std::int64_t width) -> Status {
    const auto bytes = static_cast<std::size_t>(kRows * width) * sizeof(float);
    if (bytes <= buffer.size_bytes()) return ok_status();
    FOVEA_ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::create(device, bytes, true));
    return ok_status();
  };
  FOVEA_RETURN_IF_ERROR(room(x_, in));
  return room(y_, out);
}

// The last rows, if they are fewer, by way of memory that has as many.
Status CudaLinear::forward_fixed(cuda::MatmulSpec spec, const TensorView& x, const TensorView& y) {
  if (x.strides[0] != in_ || y.strides[0] != out_) {
    return unsupported("batch-invariant products of rows that do not lie side by side");
  }
  const std::int64_t x_bytes = in_ * dtype_bits(dtype_) / 8, y_bytes = out_ * dtype_bits(y.dtype) / 8;
  const cuda::Device& device = fixed_->device();
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::int64_t rows = spec.rows;
  spec.rows = FixedRows::kRows;
  for (std::int64_t row = 0; row < rows; row += FixedRows::kRows) {
    const auto* from = static_cast<const std::byte*>(x.data) + row * x_bytes;
    auto* to = static_cast<std::byte*>(y.data) + row * y_bytes;
    const std::int64_t left = rows - row;
    if (left >= FixedRows::kRows) {
      FOVEA_RETURN_IF_ERROR(matmul_.run(spec, from, weight_->data(), to, stream_, bias_.data()));
      continue;
    }
    FOVEA_RETURN_IF_ERROR(
        cuda::copy_on_device(device, fixed_->x(), from, static_cast<std::size_t>(left * x_bytes), stream_));
    FOVEA_RETURN_IF_ERROR(matmul_.run(spec, fixed_->x(), weight_->data(), fixed_->y(), stream_, bias_.data()));
    FOVEA_RETURN_IF_ERROR(
        cuda::copy_on_device(device, to, fixed_->y(), static_cast<std::size_t>(left * y_bytes), stream_));
  }
  return ok_status();
}

Status CudaLinear::forward(const TensorView& x, const TensorView& y) {
  FOVEA_RETURN_IF_ERROR(check_place("x", x, place_));
  FOVEA_RETURN_IF_ERROR(check_place("y", y, place_));
  const bool wide = y.dtype == DType::kF32 && bias_.data() == nullptr;
  if (x.rank != 2 || y.rank != 2 || x.dtype != dtype_ || (y.dtype != dtype_ && !wide) || x.strides[1] != 1 ||
      y.strides[1] != 1 || x.shape[0] != y.shape[0] || x.shape[1] != in_ || y.shape[1] != out_) {
    return invalid_argument(
        "x is {} and y {}, expected {} [rows, {}] and {} [rows, {}] with contiguous rows", describe(x), describe(y),
        dtype_name(dtype_), in_,
        bias_.data() == nullptr ? fmt::format("f32 or {}", dtype_name(dtype_)) : std::string(dtype_name(dtype_)), out_);
  }
  cuda::MatmulSpec spec;
  spec.rows = x.shape[0];
  spec.in = in_;
  spec.out = out_;
  spec.x_stride = x.strides[0];
  spec.w_stride = in_;
  spec.y_stride = y.strides[0];
  spec.type = matmul_type(dtype_);
  spec.y_type = matmul_type(y.dtype);
  spec.bias = bias_.data() != nullptr;
  if (fixed_ != nullptr) return forward_fixed(spec, x, y);
  return matmul_.run(spec, x.data, weight_->data(), y.data, stream_, bias_.data());
}

}  // namespace fovea
