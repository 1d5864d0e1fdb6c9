// Divides products among CTAs, and launches them.
#include "device/cuda/skinny_linear.h"

#include <algorithm>
#include <bit>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/linear_spec.h"

namespace fovea {
namespace {

// LinearArgs::early; see docs/kernels/linear.md.
constexpr std::uint32_t kEarlyTiles = 3;

// CTAs of a cluster that k of so many slices of x needs; 0: more than there can be.
std::uint32_t split_of(std::int64_t slices, std::uint32_t blocks) {
  const std::int64_t of_cta = abi::kLinearWarps * abi::linear_warp_slices(blocks);
  const std::int64_t split = (slices + of_cta - 1) / of_cta;
  return split > abi::kLinearMaxSplit ? 0
                                      : static_cast<std::uint32_t>(std::bit_ceil(static_cast<std::uint64_t>(split)));
}

// Two CTAs an SM, so that one reads while the other begins or ends. Clusters of four and more do not fit into every
// group of SMs that clusters come from, whose sizes are not known; with one CTA an SM and some SMs spare they do.
std::uint32_t clusters_of(int num_sms, std::uint32_t split) {
  const std::uint32_t sms = static_cast<std::uint32_t>(num_sms);
  return std::max(1u, split <= 2 ? 2 * sms / split : sms / 8 * 8 / split);
}

bool is_aligned(const void* at, std::int64_t stride, std::int64_t element, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0 &&
         static_cast<std::uintptr_t>(stride * element) % bytes == 0;
}

Status check(const std::string& arch, const SkinnyLinearSpec& s) {
  if (arch != "sm_90a") return unsupported("small products need sm_90a, not {}", arch);
  if (s.in < 1 || s.in % abi::linear_weight_slice(s.fp8) != 0 || s.out < 1 || s.out % 8 != 0 ||
      s.out > (std::int64_t{1} << 31)) {
    return unsupported("a small product of {} in and {} out, expected multiples of {} and 8", s.in, s.out,
                       abi::linear_weight_slice(s.fp8));
  }
  if (split_of(s.in / abi::kLinearSlice, 1) == 0) {
    return unsupported("a small product of {} in, expected at most {}", s.in,
                       abi::kLinearMaxSplit * abi::kLinearWarps * abi::linear_warp_slices(1) * abi::kLinearSlice);
  }
  if (s.dtype != DType::kBF16 && s.dtype != DType::kF16) {
    return unsupported("a small product of {}, expected bf16 or f16", dtype_name(s.dtype));
  }
  return ok_status();
}

// CTAs of a cluster of the kernel for up to 8 * blocks rows; 0: there is none, which forward() is told by takes().
std::uint32_t split_for(const SkinnyLinearSpec& spec, std::uint32_t blocks) {
  return 8 * (blocks - 1) >= spec.most_rows ? 0 : split_of(spec.in / abi::kLinearSlice, blocks);
}

jit::LinearKernelSpec kernel_spec(const std::string& arch, const SkinnyLinearSpec& spec, std::uint32_t blocks) {
  return {.arch = arch,
          .dtype = spec.dtype == DType::kBF16 ? abi::KvDType::kBF16 : abi::KvDType::kF16,
          .fp8 = spec.fp8,
          .tokens = 8 * blocks,
          .split = split_for(spec, blocks),
          .norm = spec.norm,
          .activation = spec.activation,
          .ring = abi::linear_ring(blocks)};
}

}  // namespace

Result<std::vector<jit::KernelSource>> skinny_kernels(const std::string& arch, const SkinnyLinearSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check(arch, spec));
  std::vector<jit::KernelSource> all;
  for (const std::uint32_t blocks : {1u, 2u}) {
    if (split_for(spec, blocks) == 0) continue;
    FOVEA_ASSIGN_OR_RETURN(jit::KernelSource source, jit::linear_source(kernel_spec(arch, spec, blocks)));
    all.push_back(std::move(source));
  }
  return all;
}

Result<SkinnyLinear> SkinnyLinear::create(const cuda::Device& device, const SkinnyLinearSpec& spec, const void* weights,
                                          const float* scales) {
  FOVEA_RETURN_IF_ERROR(check(device.info().arch(), spec));
  if (!is_aligned(weights, spec.in, spec.fp8 ? 1 : 2, 16)) {
    return invalid_argument("weights of a product are not aligned to 16 bytes");
  }
  if (spec.fp8 != (scales != nullptr)) return invalid_argument("weights of a product are e4m3 with scales, or neither");
  SkinnyLinear linear;
  linear.spec_ = spec;
  linear.scales_ = scales;
  for (const std::uint32_t blocks : {1u, 2u}) {
    const std::uint32_t split = split_for(spec, blocks);
    if (split == 0) continue;
    Kernel& kernel = linear.kernels_[blocks - 1];
    const jit::LinearKernelSpec variant = kernel_spec(device.info().arch(), spec, blocks);
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::linear_source(variant));
    FOVEA_ASSIGN_OR_RETURN(kernel.function, cuda_kernel(device, source, "fovea_linear"));
    kernel.smem_bytes = abi::linear_smem_bytes(variant.ring, blocks, split, spec.norm);
    FOVEA_RETURN_IF_ERROR(kernel.function.set_max_smem(kernel.smem_bytes));
    kernel.shape.w = weights;
    kernel.shape.pairs = static_cast<std::uint32_t>(spec.out / 2);
    kernel.shape.half = linear.gated() ? static_cast<std::uint32_t>(spec.out / 2) : 1;
    kernel.shape.k = static_cast<std::uint32_t>(spec.in);
    kernel.shape.split = split;
    kernel.shape.slice = abi::linear_weight_slice(spec.fp8);
    kernel.shape.clusters = std::min(clusters_of(device.info().num_sms, split), kernel.shape.pairs);
  }
  return linear;
}

bool SkinnyLinear::takes(const Call& call) const {
  if (call.rows < 1 || call.rows > kMaxRows || kernel_for(call.rows).shape.split == 0) return false;
  const std::int64_t element = call.f32_out ? 4 : 2;
  return is_aligned(call.x, call.x_stride, 2, 16) && is_aligned(call.y, call.y_stride, element, gated() ? 2 : 4) &&
         is_aligned(call.residual, call.y_stride, 2, 4);
}

Status SkinnyLinear::forward(const Call& call, cuda::StreamHandle stream) const {
  if (!takes(call)) {
    return invalid_argument(
        "a small product of {} rows with strides {} and {}, expected 1 to {} rows, x aligned to 16 bytes and y to 4",
        call.rows, call.x_stride, call.y_stride, kMaxRows);
  }
  if (call.x == nullptr || call.y == nullptr || (call.norm != nullptr) != spec_.norm || call.x_stride < spec_.in ||
      call.y_stride < columns()) {
    return invalid_argument("a small product was given no x or y, no norm where it has one, or strides {} and {}",
                            call.x_stride, call.y_stride);
  }
  const bool added = call.residual != nullptr;
  if ((added && (gated() || call.f32_out)) || (gated() && call.f32_out)) {
    return invalid_argument("a small product has one of a residual, a gate and y in f32, at most");
  }
  const Kernel& kernel = kernel_for(call.rows);
  abi::LinearArgs args{};
  args.shape = kernel.shape;
  args.x = call.x;
  args.y = call.y;
  args.residual = call.residual;
  args.bias = call.bias;
  args.scales = scales_;
  args.norm = call.norm;
  args.x_stride = call.x_stride;
  args.y_stride = call.y_stride;
  args.tokens = static_cast<std::uint32_t>(call.rows);
  args.norm_plus_one = spec_.norm_plus_one ? 1 : 0;
  args.norm_eps = spec_.norm_eps;
  args.early = kEarlyTiles;
  args.f32_out = call.f32_out ? 1 : 0;
  cuda::LaunchConfig config;
  config.grid[0] = kernel.shape.clusters * kernel.shape.split;
  config.block[0] = abi::kLinearWarps * 32;
  config.cluster[0] = kernel.shape.split;
  config.smem_bytes = kernel.smem_bytes;
  config.stream = stream;
  config.programmatic_serialization = true;
  void* parameters[] = {&args};
  return cuda::launch(kernel.function, config, parameters);
}

}  // namespace fovea
