// Checks a product and enqueues it.
#include "device/cuda/cuda_linear.h"

#include "base/status.h"

namespace fovea {
namespace {

abi::LinearActivation activation_of(const std::optional<Activation>& gate) {
  if (!gate.has_value()) return abi::LinearActivation::kNone;
  switch (*gate) {
    case Activation::kSilu: return abi::LinearActivation::kSilu;
    case Activation::kGeluTanh: return abi::LinearActivation::kGeluTanh;
    case Activation::kGelu: return abi::LinearActivation::kGelu;
  }
  return abi::LinearActivation::kNone;
}

// Empty where the kernel does not take such a product.
Result<std::optional<SkinnyLinear>> few_rows(const cuda::Device& device, const SkinnyLinearSpec& spec,
                                             const void* weights) {
  Result<SkinnyLinear> made = SkinnyLinear::create(device, spec, weights);
  if (made.ok()) return std::optional(std::move(*made));
  if (made.status().code() == StatusCode::kUnsupported) return std::optional<SkinnyLinear>();
  return made.status();
}

}  // namespace

Status CudaLinear::prepare() {
  FOVEA_ASSIGN_OR_RETURN(
      few_, few_rows(device_, {.in = in_, .out = out_, .dtype = dtype_, .most_rows = kFewRows}, weight_->data()));
  return ok_status();
}

Status CudaLinear::fuse(const LinearFusion& fusion, cuda::DeviceBuffer norm) {
  if (norm.data() == nullptr && !fusion.gate.has_value()) return ok_status();
  norm_ = std::move(norm);
  SkinnyLinearSpec spec{.in = in_, .out = out_, .dtype = dtype_, .most_rows = kFewRows};
  spec.norm = norm_.data() != nullptr;
  spec.norm_plus_one = fusion.norm_offset != 0.0f;
  spec.norm_eps = fusion.norm_eps;
  spec.activation = activation_of(fusion.gate);
  FOVEA_ASSIGN_OR_RETURN(fused_, few_rows(device_, spec, weight_->data()));
  return ok_status();
}

Status CudaLinear::check(const TensorView& x, const TensorView& y, std::int64_t columns) const {
  const DevicePlace place = {DeviceKind::kCuda, device_.index()};
  FOVEA_RETURN_IF_ERROR(check_place("x", x, place));
  FOVEA_RETURN_IF_ERROR(check_place("y", y, place));
  const bool wide = y.dtype == DType::kF32 && bias_.data() == nullptr;
  if (x.rank != 2 || y.rank != 2 || x.dtype != dtype_ || (y.dtype != dtype_ && !wide) || x.strides[1] != 1 ||
      y.strides[1] != 1 || x.shape[0] != y.shape[0] || x.shape[1] != in_ || y.shape[1] != columns) {
    return invalid_argument(
        "x is {} and y {}, expected {} [rows, {}] and {} [rows, {}] with contiguous rows", describe(x), describe(y),
        dtype_name(dtype_), in_,
        bias_.data() == nullptr ? fmt::format("f32 or {}", dtype_name(dtype_)) : std::string(dtype_name(dtype_)),
        columns);
  }
  return ok_status();
}

SkinnyLinear::Call CudaLinear::call_of(const TensorView& x, const TensorView& y) const {
  SkinnyLinear::Call call;
  call.x = x.data;
  call.x_stride = x.strides[0];
  call.y = y.data;
  call.y_stride = y.strides[0];
  call.rows = x.shape[0];
  call.f32_out = y.dtype != dtype_;
  call.bias = bias_.data();
  return call;
}

Status CudaLinear::launch(const SkinnyLinear& kernel, const SkinnyLinear::Call& call) const {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  return kernel.forward(call, stream_);
}

Status CudaLinear::forward_fused(const TensorView& x, const TensorView& y) {
  if (!fuses(x.shape[0])) return Linear::forward_fused(x, y);
  FOVEA_RETURN_IF_ERROR(check(x, y, fused_->columns()));
  SkinnyLinear::Call call = call_of(x, y);
  call.norm = norm_.data();
  return launch(*fused_, call);
}

Status CudaLinear::forward_add(const TensorView& x, const TensorView& y) {
  if (!adds(x.shape[0])) return Linear::forward_add(x, y);
  FOVEA_RETURN_IF_ERROR(check(x, y, out_));
  SkinnyLinear::Call call = call_of(x, y);
  call.residual = y.data;
  return launch(*few_, call);
}

Status CudaLinear::forward(const TensorView& x, const TensorView& y) {
  FOVEA_RETURN_IF_ERROR(check(x, y, out_));
  if (few_ && is_few(x.shape[0])) {
    const SkinnyLinear::Call call = call_of(x, y);
    if (few_->takes(call)) return launch(*few_, call);
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
