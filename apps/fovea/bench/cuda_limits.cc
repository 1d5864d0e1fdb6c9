// What a GPU reaches at most: several readers of memory in several shapes, and a graph node that does nothing.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "bench/cuda.h"
#include "cuda/module.h"
#include "jit/attention_spec.h"
#include "jit/cache_spec.h"

namespace fovea::app {
namespace {

// An odd number of patterns of 16 MB each, so that the xor of all words is that of one pattern and not zero.
constexpr std::size_t kReadBytes = std::size_t{255} * (std::size_t{16} << 20);
constexpr std::size_t kPattern = std::size_t{16} << 20;

struct Reader {
  jit::ReadKernelSpec spec;
  int ctas_per_sm;

  bool bulk() const { return spec.stages > 0; }
  std::string describe() const {
    if (bulk()) {
      return fmt::format("bulk copies, {} stages of {} KB, {} CTA an SM", spec.stages, spec.tile_bytes >> 10,
                         ctas_per_sm);
    }
    return fmt::format("loads, {} threads, {} a thread, {} CTAs an SM{}", spec.threads, spec.unroll, ctas_per_sm,
                       spec.slabs ? ", in slabs" : "");
  }
  std::size_t smem() const { return bulk() ? static_cast<std::size_t>(spec.stages * spec.tile_bytes) : 0; }
  std::uint64_t tile() const {
    return static_cast<std::uint64_t>(bulk() ? spec.tile_bytes : spec.threads * spec.unroll * 16);
  }
};

std::vector<Reader> readers(const cuda::DeviceInfo& device) {
  std::vector<Reader> made = {
      {{.threads = 256, .unroll = 4}, 8}, {{.threads = 512, .unroll = 4}, 4},
      {{.threads = 512, .unroll = 8}, 2}, {{.threads = 1024, .unroll = 4}, 2},
      {{.threads = 256, .unroll = 8}, 4}, {{.threads = 512, .unroll = 8, .slabs = true}, 2},
  };
  if (device.major == 9) {
    made.insert(made.end(), {
                                {{.threads = 256, .stages = 6, .tile_bytes = 32768}, 1},
                                {{.threads = 256, .stages = 12, .tile_bytes = 16384}, 1},
                                {{.threads = 128, .stages = 24, .tile_bytes = 8192}, 1},
                                {{.threads = 128, .stages = 12, .tile_bytes = 8192}, 2},
                            });
  }
  for (Reader& reader : made) reader.spec.arch = device.arch();
  return made;
}

Result<double> read_rate(const CudaBench& bench, const Reader& r, const cuda::DeviceBuffer& data, std::uint32_t truth) {
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::read_source(r.spec));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function kernel,
                         cuda_kernel(bench.device(), source, r.bulk() ? "fovea_read_bulk" : "fovea_read_loads"));
  const cuda::ScopedContext context(bench.device());
  FOVEA_RETURN_IF_ERROR(kernel.set_max_smem(r.smem()));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer out, cuda::DeviceBuffer::create(bench.device(), 4, true));
  void *from = data.data(), *to = out.data();
  unsigned long long tiles = kReadBytes / r.tile();
  void* args[] = {&from, &tiles, &to};
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(bench.device().info().num_sms * r.ctas_per_sm);
  config.block[0] = static_cast<std::uint32_t>(r.spec.threads + (r.bulk() ? 32 : 0));
  config.smem_bytes = static_cast<std::uint32_t>(r.smem());
  config.stream = bench.stream();
  FOVEA_RETURN_IF_ERROR(cuda::launch(kernel, config, args));
  std::uint32_t seen = 0;
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(bench.device(), &seen, to, 4, bench.stream()));
  FOVEA_RETURN_IF_ERROR(bench.device().synchronize());
  if (seen != truth) return make_status(StatusCode::kInternal, "the reader \"{}\" missed bytes", r.describe());
  FOVEA_ASSIGN_OR_RETURN(const double us, bench.replay_us(1, [&](int) { return cuda::launch(kernel, config, args); }));
  return static_cast<double>(kReadBytes) / us * 1e6;
}

// As kernels/limits/matrix_limit.cuh has them.
constexpr std::uint32_t kMatrixThreads = 384;
constexpr double kMatrixRoundFlops = 3 * 16 * 2.0 * 64 * 128 * 16;  // warpgroups, products, and their shape

Result<double> matrix_rate(const CudaBench& bench) {
  if (bench.device().info().arch() != "sm_90a") return 0.0;
  FOVEA_ASSIGN_OR_RETURN(
      const jit::KernelSource source,
      jit::kernel_source("fovea_matrix_rate", bench.device().info().arch(), "kernels/limits/matrix_limit.cuh", {}));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function kernel, cuda_kernel(bench.device(), source, "fovea_matrix_rate"));
  const cuda::ScopedContext context(bench.device());
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer out, cuda::DeviceBuffer::create(bench.device(), 4, true));
  void* to = out.data();
  std::uint32_t rounds = 512;
  void* args[] = {&rounds, &to};
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(bench.device().info().num_sms);
  config.block[0] = kMatrixThreads;
  config.stream = bench.stream();
  FOVEA_ASSIGN_OR_RETURN(const double us, bench.replay_us(1, [&](int) { return cuda::launch(kernel, config, args); }));
  return rounds * kMatrixRoundFlops * config.grid[0] / us * 1e6;
}

}  // namespace

Result<CudaLimits> measure_cuda_limits(const CudaBench& bench) {
  CudaLimits limits;
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer data, bench.random(kReadBytes, 0xffff, 0));
  std::vector<std::uint32_t> pattern(kPattern / 4);
  {
    const cuda::ScopedContext context(bench.device());
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(bench.device(), pattern.data(), data.data(), kPattern, bench.stream()));
    FOVEA_RETURN_IF_ERROR(bench.device().synchronize());
  }
  std::uint32_t truth = 0;
  for (const std::uint32_t word : pattern) truth ^= word;
  FOVEA_ASSIGN_OR_RETURN(limits.flops_per_second, matrix_rate(bench));
  for (const Reader& reader : readers(bench.device().info())) {
    FOVEA_ASSIGN_OR_RETURN(const double rate, read_rate(bench, reader, data, truth));
    if (rate > limits.read_bytes_per_second) {
      limits.read_bytes_per_second = rate;
      limits.reader = reader.describe();
    }
  }
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::read_source({.arch = bench.device().info().arch()}));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function empty, cuda_kernel(bench.device(), source, "fovea_empty"));
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(bench.device().info().num_sms);
  config.block[0] = 256;
  config.stream = bench.stream();
  FOVEA_ASSIGN_OR_RETURN(limits.empty_node_us,
                         bench.replay_us(200, [&](int) { return cuda::launch(empty, config, {}); }));
  return limits;
}

}  // namespace fovea::app
