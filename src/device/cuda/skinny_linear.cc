// Divides products among CTAs, and launches them.
#include "device/cuda/skinny_linear.h"

#include <algorithm>
#include <bit>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/linear_spec.h"

namespace fovea {
namespace {

// LinearArgs::early. Of e4m3 weights the next kernel has few tiles to copy beforehand (8B, a token: 2.89 ms at once,
// 2.92 so late; of bf16 3.94 and 3.90).
constexpr std::uint32_t kEarlyTiles = 3, kAtOnce = ~0u;

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

Status check(const std::string& arch, const ProductSpec& s) {
  FOVEA_RETURN_IF_ERROR(check_product(arch, s));
  if (split_of(s.in / abi::kLinearSlice, 1) == 0) {
    return unsupported("a small product of {} in, expected at most {}", s.in,
                       abi::kLinearMaxSplit * abi::kLinearWarps * abi::linear_warp_slices(1) * abi::kLinearSlice);
  }
  return ok_status();
}

// CTAs of a cluster of the kernel for up to 8 * blocks rows; 0: there is none, which forward() is told by takes().
std::uint32_t split_for(const ProductSpec& spec, std::uint32_t blocks) {
  if (8 * (blocks - 1) >= spec.most_rows || (spec.fp8 && blocks > 1)) return 0;
  return split_of(spec.in / abi::kLinearSlice, blocks);
}

jit::LinearKernelSpec kernel_spec(const std::string& arch, const ProductSpec& spec, std::uint32_t blocks) {
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

Result<std::vector<jit::KernelSource>> skinny_kernels(const std::string& arch, const ProductSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check(arch, spec));
  std::vector<jit::KernelSource> all;
  for (const std::uint32_t blocks : {1u, 2u}) {
    if (split_for(spec, blocks) == 0) continue;
    FOVEA_ASSIGN_OR_RETURN(jit::KernelSource source, jit::linear_source(kernel_spec(arch, spec, blocks)));
    all.push_back(std::move(source));
  }
  return all;
}

Result<SkinnyLinear> SkinnyLinear::create(const cuda::Device& device, const ProductSpec& spec, const void* weights,
                                          const float* scales) {
  FOVEA_RETURN_IF_ERROR(check(device.info().arch(), spec));
  FOVEA_RETURN_IF_ERROR(check_weights(spec, weights, scales));
  SkinnyLinear linear;
  linear.spec_ = spec;
  linear.spec_.most_rows = std::min(spec.most_rows, spec.fp8 ? 8 : kMaxRows);
  linear.scales_ = scales;
  for (const std::uint32_t blocks : {1u, 2u}) {
    const std::uint32_t split = split_for(spec, blocks);
    if (split == 0) continue;
    ProductLaunch& kernel = linear.kernels_[blocks - 1];
    const jit::LinearKernelSpec variant = kernel_spec(device.info().arch(), spec, blocks);
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::linear_source(variant));
    FOVEA_ASSIGN_OR_RETURN(kernel.function, cuda_kernel(device, source, "fovea_linear"));
    kernel.smem_bytes = abi::linear_smem_bytes(variant.ring, blocks, split, spec.norm);
    FOVEA_RETURN_IF_ERROR(kernel.function.set_max_smem(kernel.smem_bytes));
    kernel.shape = product_shape(spec, weights);
    kernel.shape.split = split;
    kernel.shape.clusters = std::min(clusters_of(device.info().num_sms, split), kernel.shape.pairs);
    kernel.ctas = kernel.shape.clusters * split;
    kernel.threads = abi::kLinearWarps * 32;
  }
  return linear;
}

bool SkinnyLinear::takes(const ProductCall& call) const {
  if (call.rows < 1 || call.rows > kMaxRows || !kernel_for(call.rows).exists()) return false;
  return is_aligned(spec_, call);
}

Status SkinnyLinear::forward(const ProductCall& call, cuda::StreamHandle stream) const {
  const bool taken = takes(call);
  return launch_product(kernel_for(call.rows), spec_, call, taken, scales_, spec_.fp8 ? kAtOnce : kEarlyTiles, stream);
}

}  // namespace fovea
