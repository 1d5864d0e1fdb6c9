// `fovea bench ops`: matrix products of one row beside the read bandwidth, and of many rows beside the FMA rate, for
// the shapes of needle and of an 8 B Llama.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "bench/report.h"
#include "commands.h"
#include "console.h"
#include "cpu/limits.h"
#include "cpu/ops/matmul.h"
#include "cpu/simd.h"
#include "machine/machine.h"

namespace fovea::app {
namespace {

struct BenchOpsState {
  std::int32_t threads = 0;
  std::int32_t repeats = 20;
  double read_gb = 4.0;
  std::string json;
};

struct Shape {
  const char* name;
  std::int64_t out, in;
};
constexpr Shape kShapes[] = {{"needle gate_up", 1536, 256},
                             {"needle lm_head", 4096, 256},
                             {"8B qkv", 6144, 4096},
                             {"8B gate_up", 28672, 4096},
                             {"8B down", 4096, 14336}};

// Seconds of the fastest of some calls, after one that is not counted; at least three, then no more than a second of
// them.
template <typename Call>
double best_seconds(std::int32_t repeats, Call&& call) {
  using Clock = std::chrono::steady_clock;
  call();
  double best = 1e30, spent = 0.0;
  for (std::int32_t i = 0; i < repeats && (i < 3 || spent < 1.0); ++i) {
    const Clock::time_point start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

struct Limits {
  double read = 0.0;   // bytes a second
  double flops = 0.0;  // of fp32 FMA
};

Status bench_shape(const BenchOpsState& s, const Shape& shape, const Limits& limits, ThreadPool& threads,
                   BenchReport& report) {
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(shape.out * shape.in));
  PhiloxRng rng(1);
  for (std::uint16_t& w : weights) w = float_to_bf16(rng.next_float() - 0.5f);
  const TensorView view = cpu_tensor(weights.data(), DType::kBF16, shape.out, shape.in);
  FOVEA_ASSIGN_OR_RETURN(const cpu::PackedWeight packed,
                         cpu::PackedWeight::create(std::array{view}, cpu::MatmulPrecision::kBf16, threads));
  cpu::MatmulScratch scratch;
  FOVEA_RETURN_IF_ERROR(scratch.reserve(shape.in, threads.size()));
  constexpr std::int64_t kMaxRows = 512;
  std::vector<float> x(static_cast<std::size_t>(kMaxRows * shape.in));
  for (float& value : x) value = rng.next_float() - 0.5f;
  std::vector<float> y(static_cast<std::size_t>(kMaxRows * shape.out));
  const auto seconds = [&](std::int64_t rows, cpu::MatmulPrecision precision) {
    return best_seconds(rows < 8 ? 10 * s.repeats : s.repeats, [&] {
      cpu::matmul(x.data(), shape.in, rows, packed, nullptr, y.data(), shape.out, precision, scratch, threads);
    });
  };
  const double bytes = static_cast<double>(weights.size()) * 2.0;
  const std::string name = fmt::format("{} {}x{}", shape.name, shape.out, shape.in);
  // Small weights stay in the caches, for which the limit of memory means nothing.
  const auto read_limit = bytes > 4e7 ? std::optional<double>(limits.read / 1e9) : std::nullopt;
  report.add({"ops", name + " rows 1", "weights, fp32", bytes / seconds(1, cpu::MatmulPrecision::kF32) / 1e9, "GB/s",
              read_limit, "", std::nullopt, false});
  report.add({"ops", name + " rows 1", "weights, bf16", bytes / seconds(1, cpu::MatmulPrecision::kBf16) / 1e9, "GB/s",
              read_limit, "", std::nullopt, false});
  for (const std::int64_t rows :
       {std::int64_t{2}, std::int64_t{4}, std::int64_t{7}, std::int64_t{8}, std::int64_t{64}, kMaxRows}) {
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(weights.size());
    report.add({"ops", fmt::format("{} rows {}", name, rows), "fp32",
                flops / seconds(rows, cpu::MatmulPrecision::kF32) / 1e9, "GFLOP/s", limits.flops / 1e9, "",
                std::nullopt, false});
    // No limit beside it: the rate of bf16 products is another, which no reader here measures.
    report.add({"ops", fmt::format("{} rows {}", name, rows), "bf16",
                flops / seconds(rows, cpu::MatmulPrecision::kBf16) / 1e9, "GFLOP/s", std::nullopt, "", std::nullopt,
                false});
  }
  return ok_status();
}

int run_bench_ops(const BenchOpsState& s) {
  if (s.threads < 0 || s.repeats < 1 || !(s.read_gb > 0.0)) {
    return fail(Status(StatusCode::kInvalidArgument, "--threads must be 0 or more, --repeats and --read-gb positive"));
  }
  if (const Status writable = check_output(s.json); !writable.ok()) return fail(writable);
  ThreadPool threads(s.threads == 0 ? default_num_threads() : s.threads);
  Limits limits;
  limits.flops = cpu::measure_fma_flops(threads);
  {
    const auto bytes = static_cast<std::size_t>(s.read_gb * 1e9);
    const std::vector<std::byte> memory(bytes, std::byte{1});
    limits.read = cpu::measure_read(memory.data(), static_cast<std::int64_t>(bytes), 3, threads).bytes_per_second;
  }
  BenchReport report;
  report.set_machine("cpu", read_machine().cpu);
  report.set_machine("threads", static_cast<double>(threads.size()));
  report.set_machine("simd", std::string(cpu::simd_target()));
  report.set_machine("read_gb_per_s", limits.read / 1e9);
  report.set_machine("fma_gflop_per_s", limits.flops / 1e9);
  for (const Shape& shape : kShapes) {
    const Status status = bench_shape(s, shape, limits, threads, report);
    if (!status.ok()) return fail(status);
  }
  const Status status = report.emit(s.json);
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace

RunFunction declare_bench_ops(Options& options) {
  auto state = std::make_shared<BenchOpsState>();
  options.add("threads", state->threads, "Threads; 0: what the cgroup allows");
  options.add("repeats", state->repeats, "Calls behind each time; the fastest is shown");
  options.add("read-gb", state->read_gb, "Gigabytes that the plain readers read");
  options.add("json", state->json, "Write the rows as JSON here; - is stdout");
  options.examples("  fovea bench ops\n  fovea bench ops --threads 1 --json - | jq .rows");
  return [state] { return run_bench_ops(*state); };
}

}  // namespace fovea::app
