// What the host does before a GPU runs: plans, and kernels compiled when first needed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <vector>

#include "attention/cuda_executor.h"
#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "bench/device_case.h"
#include "cuda/module.h"
#include "jit/cache_spec.h"
#include "jit/compiler.h"
#include "workload/lengths.h"

namespace fovea::app {
namespace {

constexpr int kHostCalls = 60;

// Host microseconds of a call that plans, the device idle before it: the median of many.
template <typename F>
Result<double> host_us(const CudaBench& bench, F&& call) {
  std::vector<double> times;
  for (int i = 0; i < kHostCalls; ++i) {
    FOVEA_RETURN_IF_ERROR(bench.device().synchronize());
    const auto begin = std::chrono::steady_clock::now();
    FOVEA_RETURN_IF_ERROR(call());
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Status bench_plans(const CudaBench& bench, BenchReport& report) {
  for (const std::int32_t requests : {1, 16, 64, 256}) {
    MeasuredCase c;
    c.suite = "plan";
    c.q_lens = constant_lengths(requests, 1);
    c.kv_lens = constant_lengths(requests, 4096);
    FOVEA_ASSIGN_OR_RETURN(DeviceCase device, DeviceCase::create(bench, c, false));
    const std::string name = fmt::format("B{} S4096 32/8", requests);
    const auto add = [&](const char* metric, double value, const char* unit = "us") {
      report.add({"plan", name, metric, value, unit, std::nullopt, "", std::nullopt, true});
    };
    const auto times = [&](const char* full, const char* grown) -> Status {
      device.shorten(kHostCalls + 1);
      FOVEA_ASSIGN_OR_RETURN(const double full_us, host_us(bench, [&] { return device.plan(); }));
      add(full, full_us);
      FOVEA_ASSIGN_OR_RETURN(const double grown_us, host_us(bench, [&] { return device.grow(); }));
      add(grown, grown_us);
      return ok_status();
    };
    // Lists on the host are copied with the plan, and the plan is cut again there.
    FOVEA_RETURN_IF_ERROR(times("full, lists from the host", "grown, lists from the host"));
    FOVEA_RETURN_IF_ERROR(device.keep_lists_on_device());
    FOVEA_RETURN_IF_ERROR(times("full, with the copy", "grown, host"));
    FOVEA_ASSIGN_OR_RETURN(const double reschedule, device.reschedule_us());
    add("grown, kernel on the device", reschedule);
    add("bytes copied", static_cast<double>(device.stats().plan_bytes) / 1024, "KiB");
  }
  return ok_status();
}

// Host microseconds of a call that enqueues a kernel: the median of rounds of a few, the device idle before each, so
// that no queue is full.
template <typename F>
Result<double> enqueue_us(const CudaBench& bench, F&& call) {
  constexpr int kCalls = 32;
  FOVEA_ASSIGN_OR_RETURN(const double us, host_us(bench, [&]() -> Status {
                           for (int i = 0; i < kCalls; ++i) FOVEA_RETURN_IF_ERROR(call());
                           return ok_status();
                         }));
  return us / kCalls;
}

// What a layer costs the host, beside a launch of a kernel that does nothing.
Status bench_calls(const CudaBench& bench, BenchReport& report) {
  MeasuredCase c;
  c.suite = "plan";
  c.q_lens = constant_lengths(64, 1);
  c.kv_lens = constant_lengths(64, 4096);
  FOVEA_ASSIGN_OR_RETURN(DeviceCase device, DeviceCase::create(bench, c, false));
  const cuda::ScopedContext context(bench.device());
  std::vector<std::int32_t> slots(64);
  std::iota(slots.begin(), slots.end(), 0);
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer there,
                         cuda::DeviceBuffer::create(bench.device(), slots.size() * sizeof(slots[0])));
  FOVEA_RETURN_IF_ERROR(
      cuda::copy_to_device(bench.device(), there.data(), slots.data(), there.size_bytes(), bench.stream()));
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::read_source({.arch = bench.device().info().arch()}));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function empty, cuda_kernel(bench.device(), source, "fovea_empty"));
  cuda::LaunchConfig config;
  config.stream = bench.stream();
  const auto add = [&](const char* metric, double us) {
    report.add({"plan", "B64 S4096 32/8", metric, us, "us", std::nullopt, "", std::nullopt, true});
  };
  FOVEA_ASSIGN_OR_RETURN(const double run, enqueue_us(bench, [&] { return device.run(0); }));
  add("run, host", run);
  FOVEA_ASSIGN_OR_RETURN(const double append, enqueue_us(bench, [&] { return device.append(there); }));
  add("append, host", append);
  FOVEA_ASSIGN_OR_RETURN(const double bare, enqueue_us(bench, [&] { return cuda::launch(empty, config, {}); }));
  add("empty launch, host", bare);
  return ok_status();
}

// The plain decode kernel: compiled into an empty cache, then found there by a compiler that has not seen it.
Status bench_compile(const CudaBench& bench, BenchReport& report) {
  namespace fs = std::filesystem;
  const cuda::DeviceInfo& info = bench.device().info();
  FOVEA_ASSIGN_OR_RETURN(const std::vector<jit::KernelSource> kernels,
                         attention_kernels(AttentionOptions{}, info.arch(), info.num_sms));
  std::error_code ignored;
  const fs::path folder = fs::temp_directory_path(ignored) / fmt::format("fovea-bench-{}", getpid());
  Status status;
  for (const char* where : {"cold", "from disk"}) {
    jit::Compiler compiler(folder.string(), jit::cache_limit_bytes());
    const auto begin = std::chrono::steady_clock::now();
    status = compiler.get(kernels.front()).status();
    if (!status.ok()) break;
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    report.add({"compile", "decode kernel", where, ms, "ms", std::nullopt, "", std::nullopt, true});
  }
  fs::remove_all(folder, ignored);
  return status;
}

}  // namespace

Status bench_cuda_host(const CudaBench& bench, BenchReport& report) {
  FOVEA_RETURN_IF_ERROR(bench_plans(bench, report));
  FOVEA_RETURN_IF_ERROR(bench_calls(bench, report));
  return bench_compile(bench, report);
}

}  // namespace fovea::app
