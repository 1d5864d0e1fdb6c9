// Checks a product and enqueues it.
#include "device/cuda/cuda_linear.h"

#include <algorithm>

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
template <typename Kernel>
Result<std::optional<Kernel>> if_taken(Result<Kernel> made) {
  if (made.ok()) return std::optional(std::move(*made));
  if (made.status().code() == StatusCode::kUnsupported) return std::optional<Kernel>();
  return made.status();
}

// For the rows that choose_product() takes the kernels for.
ProductSpec skinny_spec(ProductSpec spec) {
  spec.most_rows = kMostSkinnyRows;
  return spec;
}
ProductSpec batch_spec(ProductSpec spec, bool has_skinny) {
  const ProductRows rows = batch_rows(spec.in, has_skinny);
  spec.least_rows = rows.least;
  spec.most_rows = rows.most;
  return spec;
}

}  // namespace

Result<std::vector<jit::KernelSource>> product_kernels(const std::string& arch, DType dtype, bool fp8,
                                                       const ProductSizes& sizes, Activation gate) {
  std::vector<jit::KernelSource> all;
  const auto add = [&](ProductSpec spec) -> Status {
    spec.out = 8;  // kernels are the same for all
    spec.dtype = dtype;
    const auto skinny = skinny_kernels(arch, skinny_spec(spec));
    for (Result<std::vector<jit::KernelSource>> kernels :
         {skinny, batch_kernels(arch, batch_spec(spec, skinny.ok()))}) {
      if (kernels.status().code() == StatusCode::kUnsupported) continue;  // cuBLASLt takes the product
      if (!kernels.ok()) return kernels.status();
      for (jit::KernelSource& kernel : *kernels) {
        const auto is_same = [&](const jit::KernelSource& other) { return other.text == kernel.text; };
        if (std::none_of(all.begin(), all.end(), is_same)) all.push_back(std::move(kernel));
      }
    }
    return ok_status();
  };
  for (const bool narrow : fp8 ? std::vector{false, true} : std::vector{false}) {
    for (const bool norm : {false, true}) {
      FOVEA_RETURN_IF_ERROR(add({.in = sizes.hidden, .fp8 = narrow, .norm = norm}));
      FOVEA_RETURN_IF_ERROR(add({.in = sizes.hidden, .fp8 = narrow, .norm = norm, .activation = activation_of(gate)}));
    }
    FOVEA_RETURN_IF_ERROR(add({.in = sizes.attention, .fp8 = narrow}));
    FOVEA_RETURN_IF_ERROR(add({.in = sizes.intermediate, .fp8 = narrow}));
  }
  return all;
}

Status Fp8Scratch::reserve(const cuda::Device& device, std::int64_t in) {
  const std::size_t bytes = static_cast<std::size_t>(kRows * in);
  if (bytes <= codes_.size_bytes()) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(codes_, cuda::DeviceBuffer::create(device, bytes));
  if (scales_.data() != nullptr) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(scales_, cuda::DeviceBuffer::create(device, kRows * sizeof(float)));
  FOVEA_ASSIGN_OR_RETURN(expanded_, cuda::DeviceBuffer::create(device, kExpandedBytes));
  return ok_status();
}

Status CudaLinear::prepare() {
  if (fixed_ && is_fp8()) return unsupported("fp8_e4m3 weights and batch-invariant bits on a CUDA device; choose one");
  if (fixed_) return ok_status();
  if (is_fp8()) {
    FOVEA_RETURN_IF_ERROR(fp8_.reserve(device_, in_));
    multiplies_fp8_ = device_.info().major >= 9 && in_ % 16 == 0 && out_ % 16 == 0;  // else cuBLASLt has none
  }
  FOVEA_ASSIGN_OR_RETURN(plain_, make_kernels(spec()));
  return ok_status();
}

Status CudaLinear::fuse(const LinearFusion& fusion, cuda::DeviceBuffer norm) {
  if (fixed_ || (norm.data() == nullptr && !fusion.gate.has_value())) return ok_status();
  norm_ = std::move(norm);
  ProductSpec fused = spec();
  fused.norm = norm_.data() != nullptr;
  fused.norm_plus_one = fusion.norm_offset != 0.0f;
  fused.norm_eps = fusion.norm_eps;
  fused.activation = activation_of(fusion.gate);
  fused_columns_ = fused.columns();
  FOVEA_ASSIGN_OR_RETURN(fused_, make_kernels(fused));
  return ok_status();
}

Result<CudaLinear::Kernels> CudaLinear::make_kernels(const ProductSpec& spec) const {
  Kernels kernels;
  FOVEA_ASSIGN_OR_RETURN(
      kernels.skinny, if_taken(SkinnyLinear::create(device_, skinny_spec(spec), weight_->data(), scales_.as<float>())));
  FOVEA_ASSIGN_OR_RETURN(kernels.batch, if_taken(BatchLinear::create(
                                            device_, batch_spec(spec, kernels.skinny.has_value()), weight_->data())));
  return kernels;
}

ProductChoice CudaLinear::choose(const Kernels& kernels, std::int64_t rows) const {
  return choose_product(
      {.rows = rows, .in = in_, .has_skinny = kernels.skinny.has_value(), .has_batch = kernels.batch.has_value()});
}

ProductChoice CudaLinear::choose(const Kernels& kernels, const ProductCall& call) const {
  return choose_product({.rows = call.rows,
                         .in = in_,
                         .has_skinny = kernels.skinny.has_value() && kernels.skinny->takes(call),
                         .has_batch = kernels.batch.has_value() && kernels.batch->takes(call)});
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

ProductCall CudaLinear::call_of(const TensorView& x, const TensorView& y) const {
  ProductCall call;
  call.x = x.data;
  call.x_stride = x.strides[0];
  call.y = y.data;
  call.y_stride = y.strides[0];
  call.rows = x.shape[0];
  call.f32_out = y.dtype != dtype_;
  call.bias = bias_.data();
  return call;
}

Status CudaLinear::launch(const Kernels& kernels, ProductKernel kernel, const ProductCall& call) const {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  return kernel == ProductKernel::kSkinny ? kernels.skinny->forward(call, stream_)
                                          : kernels.batch->forward(call, stream_);
}

Status CudaLinear::forward_fused(const TensorView& x, const TensorView& y) {
  const ProductKernel kernel = choose(fused_, x.shape[0]).kernel;
  if (kernel == ProductKernel::kCublasLt) return Linear::forward_fused(x, y);
  FOVEA_RETURN_IF_ERROR(check(x, y, fused_columns_));
  ProductCall call = call_of(x, y);
  call.norm = norm_.data();
  return launch(fused_, kernel, call);
}

Status CudaLinear::forward_add(const TensorView& x, const TensorView& y) {
  const ProductKernel kernel = choose(plain_, x.shape[0]).kernel;
  if (kernel == ProductKernel::kCublasLt) return Linear::forward_add(x, y);
  FOVEA_RETURN_IF_ERROR(check(x, y, out_));
  ProductCall call = call_of(x, y);
  call.residual = y.data;
  return launch(plain_, kernel, call);
}

Status CudaLinear::forward(const TensorView& x, const TensorView& y) {
  FOVEA_RETURN_IF_ERROR(check(x, y, out_));
  const ProductCall call = call_of(x, y);
  if (const ProductKernel kernel = choose(plain_, call).kernel; kernel != ProductKernel::kCublasLt) {
    return launch(plain_, kernel, call);
  }
  if (is_fp8()) {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    if (multiplies_fp8_) {
      const Status status = multiply_fp8(x, y);
      if (status.code() != StatusCode::kUnsupported) return status;
      multiplies_fp8_ = false;
    }
    return multiply_expanded(x, y);
  }
  return matmul_.run(spec_of(x, y), x.data, weight_->data(), y.data, stream_, bias_.data());
}

cuda::MatmulSpec CudaLinear::spec_of(const TensorView& x, const TensorView& y) const {
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
  spec.fixed = fixed_;
  return spec;
}

Status CudaLinear::multiply_fp8(const TensorView& x, const TensorView& y) {
  cuda::MatmulSpec spec = spec_of(x, y);
  spec.type = cuda::MatmulType::kE4M3;
  spec.x_stride = in_;
  // With scales of rows cuBLASLt has one kernel, for many rows, and no bias; of halves the sums alone may overflow.
  constexpr std::int64_t kFewForScales = 512;
  spec.row_scales = x.shape[0] > kFewForScales || y.dtype != DType::kBF16;
  spec.bias = false;
  const std::int64_t x_bytes = dtype_bits(x.dtype) / 8, y_bytes = dtype_bits(y.dtype) / 8;
  for (std::int64_t first = 0; first < x.shape[0]; first += Fp8Scratch::kRows) {
    spec.rows = std::min(Fp8Scratch::kRows, x.shape[0] - first);
    abi::Fp8RowsArgs rows{};
    rows.from = static_cast<const std::byte*>(x.data) + first * x.strides[0] * x_bytes;
    rows.codes = fp8_.codes();
    rows.scales = fp8_.scales();
    rows.stride = x.strides[0];
    rows.rows = static_cast<std::uint32_t>(spec.rows);
    rows.width = static_cast<std::uint32_t>(in_);
    FOVEA_RETURN_IF_ERROR(ops_.fp8_rows(rows, dtype_));
    std::byte* const to = static_cast<std::byte*>(y.data) + first * y.strides[0] * y_bytes;
    cuda::MatmulScales scales;
    if (spec.row_scales) scales = {fp8_.scales(), scales_.as<float>()};
    FOVEA_RETURN_IF_ERROR(matmul_.run(spec, fp8_.codes(), weight_->data(), to, stream_, nullptr, scales));
    if (spec.row_scales && bias_.data() == nullptr) continue;
    abi::Fp8FinishArgs finish{};
    finish.y = to;
    if (!spec.row_scales) finish.row_scales = fp8_.scales();
    if (!spec.row_scales) finish.column_scales = scales_.as<float>();
    finish.bias = bias_.data();
    finish.stride = y.strides[0];
    finish.rows = static_cast<std::uint32_t>(spec.rows);
    finish.width = static_cast<std::uint32_t>(out_);
    FOVEA_RETURN_IF_ERROR(ops_.fp8_finish(finish, y.dtype));
  }
  return ok_status();
}

Status CudaLinear::multiply_expanded(const TensorView& x, const TensorView& y) {
  const std::int64_t bytes = dtype_bits(dtype_) / 8, y_bytes = dtype_bits(y.dtype) / 8;
  const std::int64_t most = static_cast<std::int64_t>(Fp8Scratch::kExpandedBytes) / (in_ * bytes) / 16 * 16;
  if (most == 0) return unsupported("weights of {} in, as fp8_e4m3 with {} rows", in_, x.shape[0]);
  cuda::MatmulSpec spec = spec_of(x, y);
  for (std::int64_t first = 0; first < out_; first += most) {
    spec.out = std::min(most, out_ - first);
    abi::Fp8ExpandArgs expand{};
    expand.codes = weight_->as<std::uint8_t>() + first * in_;
    expand.scales = scales_.as<float>() + first;
    expand.to = fp8_.expanded();
    expand.rows = static_cast<std::uint32_t>(spec.out);
    expand.width = static_cast<std::uint32_t>(in_);
    FOVEA_RETURN_IF_ERROR(ops_.fp8_expand(expand, dtype_));
    const auto* const bias = spec.bias ? bias_.as<std::byte>() + first * bytes : nullptr;
    FOVEA_RETURN_IF_ERROR(
        matmul_.run(spec, x.data, fp8_.expanded(), static_cast<std::byte*>(y.data) + first * y_bytes, stream_, bias));
  }
  return ok_status();
}

}  // namespace fovea
