// Divides products of a batch among CTAs, and launches them.
#include "device/cuda/batch_linear.h"

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/linear_spec.h"

namespace fovea {
namespace {

// Rows of x that there are kernels for.
constexpr std::array<std::uint32_t, 4> kTokens = {8, 16, 32, 64};

// Whether the spec asks for rows that kernel i serves.
bool is_asked(const ProductSpec& spec, std::size_t i) {
  return spec.least_rows <= kTokens[i] && (i == 0 || spec.most_rows > kTokens[i - 1]);
}

Status check(const std::string& arch, const ProductSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check_product(arch, spec));
  if (spec.fp8) return unsupported("products of batches take no e4m3 weights");
  constexpr std::int64_t kLeast =
      abi::kLinearMaxSplit * abi::kLinearSlice;  // so that each CTA has something to multiply
  if (spec.in < kLeast) return unsupported("a product of a batch of {} in, expected at least {}", spec.in, kLeast);
  return ok_status();
}

jit::BatchLinearKernelSpec kernel_spec(const std::string& arch, const ProductSpec& spec, std::uint32_t tokens) {
  const abi::LinearBatch batch = abi::linear_batch(tokens);
  return {.arch = arch,
          .dtype = spec.dtype == DType::kBF16 ? abi::KvDType::kBF16 : abi::KvDType::kF16,
          .norm = spec.norm,
          .activation = spec.activation,
          .streamed = abi::batch_streams(batch, static_cast<std::uint32_t>(spec.in)),
          .batch = batch};
}

}  // namespace

Result<std::vector<jit::KernelSource>> batch_kernels(const std::string& arch, const ProductSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check(arch, spec));
  std::vector<jit::KernelSource> all;
  for (std::size_t i = 0; i < kTokens.size(); ++i) {
    if (!is_asked(spec, i)) continue;
    FOVEA_ASSIGN_OR_RETURN(jit::KernelSource source, jit::batch_linear_source(kernel_spec(arch, spec, kTokens[i])));
    all.push_back(std::move(source));
  }
  return all;
}

Result<BatchLinear> BatchLinear::create(const cuda::Device& device, const ProductSpec& spec, const void* weights) {
  FOVEA_RETURN_IF_ERROR(check(device.info().arch(), spec));
  FOVEA_RETURN_IF_ERROR(check_weights(spec, weights, nullptr));
  BatchLinear linear;
  linear.spec_ = spec;
  for (std::size_t i = 0; i < kTokens.size(); ++i) {
    if (!is_asked(spec, i)) continue;
    ProductLaunch& kernel = linear.kernels_[i];
    const jit::BatchLinearKernelSpec variant = kernel_spec(device.info().arch(), spec, kTokens[i]);
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::batch_linear_source(variant));
    FOVEA_ASSIGN_OR_RETURN(kernel.function, cuda_kernel(device, source, "fovea_linear_batch"));
    kernel.smem_bytes = abi::batch_smem_bytes(variant.batch);
    FOVEA_RETURN_IF_ERROR(kernel.function.set_max_smem(kernel.smem_bytes));
    // Groups of SMs that clusters come from differ from card to card; what comes second would double the time.
    cuda::LaunchConfig config;
    config.block[0] = abi::kBatchThreads;
    config.cluster[0] = variant.batch.split;
    config.smem_bytes = kernel.smem_bytes;
    FOVEA_ASSIGN_OR_RETURN(const int clusters, kernel.function.clusters_at_once(config));
    if (clusters < 1) {
      return unsupported("{} holds no cluster of {} CTAs with {} bytes of shared memory", device.info().name,
                         variant.batch.split, kernel.smem_bytes);
    }
    kernel.shape = product_shape(spec, weights);
    kernel.shape.split = variant.batch.split;
    kernel.shape.clusters = static_cast<std::uint32_t>(clusters) * abi::kBatchGroups;
    kernel.ctas = static_cast<std::uint32_t>(clusters) * variant.batch.split;
    kernel.threads = abi::kBatchThreads;
  }
  return linear;
}

bool BatchLinear::takes(const ProductCall& call) const {
  return call.rows >= 1 && call.rows <= kMaxRows && kernel_for(call.rows).exists() && is_aligned(spec_, call);
}

Status BatchLinear::forward(const ProductCall& call, cuda::StreamHandle stream) const {
  const bool taken = takes(call);
  return launch_product(kernel_for(call.rows), spec_, call, taken, nullptr, 0, stream);
}

}  // namespace fovea
