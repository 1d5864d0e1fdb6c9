// Times the ladder's kernels over one prompt, for bench/ladder.h; docs/kernels/prefill.md says what each adds.
#include "bench/ladder.h"

#include <cmath>
#include <span>
#include <vector>

#include "abi/ladder_args.h"
#include "base/half.h"
#include "base/status.h"
#include "cuda/module.h"
#include "cuda/tensor_map.h"
#include "jit/compiler.h"
#include "jit/ladder_spec.h"

namespace fovea::app {
namespace {

constexpr std::uint32_t kTokens = 8192, kHeads = 32, kKvHeads = 8, kDim = abi::kLadderHeadDim;
constexpr double kFlops = 4.0 * kDim * kHeads * (0.5 * kTokens * (kTokens + 1.0));

Result<abi::TensorMap> map_of(const cuda::Device& device, const cuda::DeviceBuffer& tensor, std::uint32_t heads) {
  cuda::TensorMapSpec spec;
  spec.address = tensor.data();
  spec.rank = 5;
  const std::uint64_t row = std::uint64_t{heads} * kDim * 2;
  const std::uint64_t dims[] = {abi::kLadderPanelDims, heads, 2, kTokens, 1}, strides[] = {2, kDim * 2, 128, row, row};
  const std::uint32_t box[] = {abi::kLadderPanelDims, 1, 1, abi::kLadderBoxTokens, 1};
  for (int i = 0; i < 5; ++i) spec.dims[i] = dims[i], spec.strides[i] = strides[i], spec.box[i] = box[i];
  spec.swizzle = cuda::Swizzle::k128;
  return cuda::encode_tensor_map(device.driver(), spec);
}

// Of the last rows, which see most.
Result<std::vector<float>> outputs(const CudaBench& bench, const cuda::DeviceBuffer& out) {
  constexpr std::size_t kCount = std::size_t{64} * kHeads * kDim;
  std::vector<std::uint16_t> bits(kCount);
  const std::uint16_t* const from = out.as<std::uint16_t>() + std::size_t{kTokens} * kHeads * kDim - kCount;
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(bench.device(), bits.data(), from, kCount * 2, bench.stream()));
  FOVEA_RETURN_IF_ERROR(bench.device().synchronize());
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = bf16_to_float(bits[i]);
  return values;
}

}  // namespace

Status bench_ladder(const CudaBench& bench, const CudaLimits& limits, BenchReport& report) {
  const cuda::ScopedContext context(bench.device());
  FOVEA_RETURN_IF_ERROR(context.status());
  const auto tensor = [&](std::uint32_t heads) {
    return bench.random(std::size_t{kTokens} * heads * kDim * 2, 0x80ff, 0x3e80);  // of both signs, 0.25 to 1
  };
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer q, tensor(kHeads));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer k, tensor(kKvHeads));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer v, tensor(kKvHeads));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer out, tensor(kHeads));
  abi::LadderArgs args{q.as<std::uint16_t>(),
                       k.as<std::uint16_t>(),
                       v.as<std::uint16_t>(),
                       out.as<std::uint16_t>(),
                       kTokens,
                       kHeads,
                       kHeads / kKvHeads,
                       static_cast<float>(1.4426950408889634 / std::sqrt(kDim))};
  std::vector<float> first;
  for (const jit::LadderKernel& kernel : jit::ladder_kernels()) {
    if (kernel.maps && bench.device().info().arch() != "sm_90a") continue;
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::ladder_source(kernel, bench.device().info().arch()));
    FOVEA_ASSIGN_OR_RETURN(const jit::CubinPtr cubin, jit::Compiler::shared().get(source));
    FOVEA_ASSIGN_OR_RETURN(const cuda::Module module, cuda::Module::load(bench.device(), cubin->bytes));
    FOVEA_ASSIGN_OR_RETURN(const cuda::Function function, module.function(kernel.entry));
    FOVEA_RETURN_IF_ERROR(function.set_max_smem(kernel.smem_bytes));
    abi::LadderMaps maps{};
    if (kernel.maps) {
      FOVEA_ASSIGN_OR_RETURN(maps.q, map_of(bench.device(), q, kHeads));
      FOVEA_ASSIGN_OR_RETURN(maps.k, map_of(bench.device(), k, kKvHeads));
      FOVEA_ASSIGN_OR_RETURN(maps.v, map_of(bench.device(), v, kKvHeads));
    }
    cuda::LaunchConfig config;
    config.grid[0] = kernel.ctas(kTokens, kHeads);
    config.block[0] = kernel.threads;
    config.smem_bytes = kernel.smem_bytes;
    config.stream = bench.stream();
    void* params[] = {&args, &maps};
    const std::span<void* const> used(params, kernel.maps ? 2 : 1);
    FOVEA_ASSIGN_OR_RETURN(const CudaBench::BurstAndSoaked times,
                           bench.burst_and_soaked_us(1, [&](int) { return cuda::launch(function, config, used); }));
    // Weights and outputs are rounded to bf16; sums of these values are below 1.
    FOVEA_ASSIGN_OR_RETURN(const std::vector<float> values, outputs(bench, out));
    if (first.empty()) first = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!(std::abs(values[i] - first[i]) <= 0x1p-7f)) {
        return internal_error("kernel \"{}\" of the ladder gives {} where \"{}\" gives {}", kernel.name, values[i],
                              jit::ladder_kernels()[0].name, first[i]);
      }
    }
    for (const auto& [metric, us] : {std::pair{"burst", times.burst_us}, {"soaked", times.soaked_us}}) {
      report.add({"ladder", kernel.name, metric, kFlops / us / 1e6, "TFLOP/s", limits.flops_per_second / 1e12, "",
                  std::nullopt, false});
    }
  }
  return ok_status();
}

}  // namespace fovea::app
