// Checks a product and enqueues it.
#include "device/cuda/cuda_linear.h"

#include "base/status.h"

namespace fovea {

namespace {

// Of 9 to 16 rows cuBLASLt's products are faster; see docs/kernels/linear.md.
constexpr std::int64_t kFewRows = 8;

}  // namespace

Status CudaLinear::prepare() {
  Result<SkinnyLinear> made = SkinnyLinear::create(device_, {.in = in_, .out = out_, .dtype = dtype_}, weight_->data());
  if (made.ok()) {
    few_.emplace(std::move(*made));
  } else if (made.status().code() != StatusCode::kUnsupported) {
    return made.status();
  }
  return ok_status();
}

Status CudaLinear::forward(const TensorView& x, const TensorView& y) {
  const DevicePlace place = {DeviceKind::kCuda, device_.index()};
  FOVEA_RETURN_IF_ERROR(check_place("x", x, place));
  FOVEA_RETURN_IF_ERROR(check_place("y", y, place));
  const bool wide = y.dtype == DType::kF32 && bias_.data() == nullptr;
  if (x.rank != 2 || y.rank != 2 || x.dtype != dtype_ || (y.dtype != dtype_ && !wide) || x.strides[1] != 1 ||
      y.strides[1] != 1 || x.shape[0] != y.shape[0] || x.shape[1] != in_ || y.shape[1] != out_) {
    return invalid_argument(
        "x is {} and y {}, expected {} [rows, {}] and {} [rows, {}] with contiguous rows", describe(x), describe(y),
        dtype_name(dtype_), in_,
        bias_.data() == nullptr ? fmt::format("f32 or {}", dtype_name(dtype_)) : std::string(dtype_name(dtype_)), out_);
  }
  if (few_ && x.shape[0] >= 1 && x.shape[0] <= kFewRows) {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    SkinnyLinear::Call call;
    call.x = x.data;
    call.x_stride = x.strides[0];
    call.y = y.data;
    call.y_stride = y.strides[0];
    call.rows = x.shape[0];
    call.f32_out = y.dtype != dtype_;
    call.bias = bias_.data();
    if (few_->takes(call)) return few_->forward(call, stream_);
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
  return matmul_.run(spec, x.data, weight_->data(), y.data, stream_, bias_.data());
}

}  // namespace fovea
