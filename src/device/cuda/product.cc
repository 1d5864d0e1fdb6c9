// What is common to the kernels of decode's products.
#include "device/cuda/product.h"

#include "base/status.h"

namespace fovea {
namespace {

bool is_aligned(const void* at, std::int64_t stride, std::int64_t element, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0 &&
         static_cast<std::uintptr_t>(stride * element) % bytes == 0;
}

}  // namespace

Status check_product(const std::string& arch, const ProductSpec& s) {
  if (arch != "sm_90a") return unsupported("small products need sm_90a, not {}", arch);
  if (s.in < 1 || s.in % abi::linear_weight_slice(s.fp8) != 0 || s.out < 1 || s.out % 8 != 0 ||
      s.out > (std::int64_t{1} << 31)) {
    return unsupported("a small product of {} in and {} out, expected multiples of {} and 8", s.in, s.out,
                       abi::linear_weight_slice(s.fp8));
  }
  if (s.dtype != DType::kBF16 && s.dtype != DType::kF16) {
    return unsupported("a small product of {}, expected bf16 or f16", dtype_name(s.dtype));
  }
  return ok_status();
}

Status check_weights(const ProductSpec& spec, const void* weights, const float* scales) {
  if (!is_aligned(weights, spec.in, spec.fp8 ? 1 : 2, 16)) {
    return invalid_argument("weights of a product are not aligned to 16 bytes");
  }
  if (spec.fp8 != (scales != nullptr)) return invalid_argument("weights of a product are e4m3 with scales, or neither");
  return ok_status();
}

bool is_aligned(const ProductSpec& spec, const ProductCall& call) {
  const std::int64_t element = call.f32_out ? 4 : 2;
  return is_aligned(call.x, call.x_stride, 2, 16) && is_aligned(call.y, call.y_stride, element, spec.gated() ? 2 : 4) &&
         is_aligned(call.residual, call.y_stride, 2, 4);
}

Status check_call(const ProductSpec& spec, const ProductCall& call) {
  if (call.x == nullptr || call.y == nullptr || (call.norm != nullptr) != spec.norm || call.x_stride < spec.in ||
      call.y_stride < spec.columns()) {
    return invalid_argument("a small product was given no x or y, no norm where it has one, or strides {} and {}",
                            call.x_stride, call.y_stride);
  }
  const bool added = call.residual != nullptr;
  if ((added && (spec.gated() || call.f32_out)) || (spec.gated() && call.f32_out)) {
    return invalid_argument("a small product has one of a residual, a gate and y in f32, at most");
  }
  return ok_status();
}

abi::LinearArgs product_args(const ProductSpec& spec, const ProductCall& call, const float* scales) {
  abi::LinearArgs args{};
  args.x = call.x;
  args.y = call.y;
  args.residual = call.residual;
  args.bias = call.bias;
  args.scales = scales;
  args.norm = call.norm;
  args.x_stride = call.x_stride;
  args.y_stride = call.y_stride;
  args.tokens = static_cast<std::uint32_t>(call.rows);
  args.norm_plus_one = spec.norm_plus_one ? 1 : 0;
  args.norm_eps = spec.norm_eps;
  args.f32_out = call.f32_out ? 1 : 0;
  return args;
}

abi::LinearShape product_shape(const ProductSpec& spec, const void* weights) {
  abi::LinearShape shape{};
  shape.w = weights;
  shape.pairs = static_cast<std::uint32_t>(spec.out / 2);
  shape.half = spec.gated() ? static_cast<std::uint32_t>(spec.out / 2) : 1;
  shape.k = static_cast<std::uint32_t>(spec.in);
  shape.slice = abi::linear_weight_slice(spec.fp8);
  return shape;
}

Status launch_product(const ProductLaunch& kernel, const ProductSpec& spec, const ProductCall& call, bool takes,
                      const float* scales, std::uint32_t early, cuda::StreamHandle stream) {
  if (!takes) {
    return invalid_argument(
        "a small product of {} rows with strides {} and {}, expected {} to {} rows, x aligned to 16 bytes and y to 4",
        call.rows, call.x_stride, call.y_stride, spec.least_rows, spec.most_rows);
  }
  FOVEA_RETURN_IF_ERROR(check_call(spec, call));
  abi::LinearArgs args = product_args(spec, call, scales);
  args.shape = kernel.shape;
  args.early = early;
  cuda::LaunchConfig config;
  config.grid[0] = kernel.ctas;
  config.block[0] = kernel.threads;
  config.cluster[0] = kernel.shape.split;
  config.smem_bytes = kernel.smem_bytes;
  config.stream = stream;
  config.programmatic_serialization = true;
  void* parameters[] = {&args};
  return cuda::launch(kernel.function, config, parameters);
}

}  // namespace fovea
