// What a GPU reaches at most: several readers of memory in several shapes, and a graph node that does nothing.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/cuda.h"
#include "cuda/module.h"
#include "jit/attention_spec.h"
#include "jit/compiler.h"

namespace fovea::app {
namespace {

// An odd number of patterns of 16 MB each, so that the xor of all words is that of one pattern and not zero.
constexpr std::size_t kReadBytes = std::size_t{255} * (std::size_t{16} << 20);
constexpr std::size_t kPattern = std::size_t{16} << 20;

struct Reader {
  int threads;
  int unroll;      // of plain loads, or
  int stages;      // of a ring of bulk copies
  int tile_bytes;  // bulk
  bool slabs;
  int ctas_per_sm;

  std::string describe() const {
    if (stages > 0)
      return fmt::format("bulk copies, {} stages of {} KB, {} CTA an SM", stages, tile_bytes >> 10, ctas_per_sm);
    return fmt::format("loads, {} threads, {} a thread, {} CTAs an SM{}", threads, unroll, ctas_per_sm,
                       slabs ? ", in slabs" : "");
  }
  std::string name() const { return stages > 0 ? "fovea_read_bulk" : "fovea_read_loads"; }
  std::size_t smem() const { return static_cast<std::size_t>(stages) * static_cast<std::size_t>(tile_bytes); }
  std::uint64_t tile() const { return static_cast<std::uint64_t>(stages > 0 ? tile_bytes : threads * unroll * 16); }
};

constexpr Reader kReaders[] = {
    {256, 4, 0, 0, false, 8},     {512, 4, 0, 0, false, 4},      {512, 8, 0, 0, false, 2},
    {1024, 4, 0, 0, false, 2},    {512, 8, 0, 0, true, 2},       {256, 8, 0, 0, false, 4},
    {256, 0, 6, 32768, false, 1}, {256, 0, 12, 16384, false, 1}, {128, 0, 24, 8192, false, 1},
    {128, 0, 12, 8192, false, 2},
};

Result<cuda::Function> compile(const CudaBench& bench, const std::string& kernel,
                               const std::vector<std::pair<std::string, std::string>>& macros,
                               const std::string& header = "kernels/limits/read_limit.cuh") {
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source,
                         jit::kernel_source(kernel, bench.device().info().arch(), header, macros));
  FOVEA_ASSIGN_OR_RETURN(const jit::CubinPtr cubin, jit::Compiler::shared().get(source));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Module module, cuda::Module::load(bench.device(), cubin->bytes));
  return module.function(kernel);
}

Result<double> read_rate(const CudaBench& bench, const Reader& r, const cuda::DeviceBuffer& data, std::uint32_t truth) {
  std::vector<std::pair<std::string, std::string>> macros = {{"FOVEA_READ_THREADS", std::to_string(r.threads)}};
  if (r.stages > 0) {
    macros.emplace_back("FOVEA_READ_STAGES", std::to_string(r.stages));
    macros.emplace_back("FOVEA_READ_TILE", std::to_string(r.tile_bytes));
  } else {
    macros.emplace_back("FOVEA_READ_UNROLL", std::to_string(r.unroll));
    if (r.slabs) macros.emplace_back("FOVEA_READ_SLABS", "1");
  }
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function kernel, compile(bench, r.name(), macros));
  const cuda::ScopedContext context(bench.device());
  FOVEA_RETURN_IF_ERROR(kernel.set_max_smem(r.smem()));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer out, cuda::DeviceBuffer::create(bench.device(), 4, true));
  void *from = data.data(), *to = out.data();
  unsigned long long tiles = kReadBytes / r.tile();
  void* args[] = {&from, &tiles, &to};
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(bench.device().info().num_sms * r.ctas_per_sm);
  config.block[0] = static_cast<std::uint32_t>(r.threads + (r.stages > 0 ? 32 : 0));
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
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function kernel,
                         compile(bench, "fovea_matrix_rate", {}, "kernels/limits/matrix_limit.cuh"));
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
  const bool hopper = bench.device().info().major == 9;
  for (const Reader& reader : kReaders) {
    if (reader.stages > 0 && !hopper) continue;
    FOVEA_ASSIGN_OR_RETURN(const double rate, read_rate(bench, reader, data, truth));
    if (rate > limits.read_bytes_per_second) {
      limits.read_bytes_per_second = rate;
      limits.reader = reader.describe();
    }
  }
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function empty, compile(bench, "fovea_empty", {}));
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(bench.device().info().num_sms);
  config.block[0] = 256;
  config.stream = bench.stream();
  FOVEA_ASSIGN_OR_RETURN(limits.empty_node_us,
                         bench.replay_us(200, [&](int) { return cuda::launch(empty, config, {}); }));
  return limits;
}

}  // namespace fovea::app
