// `fovea bench attention --device cuda:N`: the measured cases through the public API: pages in random order, KV rotated
// over more than the L2, graph replays, beside what the device reads at most.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "bench/attention.h"
#include "bench/device_case.h"
#include "bench/ladder.h"
#include "bench/sparse.h"
#include "console.h"

namespace fovea::app {
namespace {

void add_rows(const MeasuredCase& c, double us, const CudaLimits& limits, BenchReport& report) {
  const double bytes = c.kv_bytes() + c.qo_bytes();
  const double floor = c.floor_us ? *c.floor_us : bytes / limits.read_bytes_per_second * 1e6;
  report.add({c.suite, c.name, "time", us, "us", floor, "", std::nullopt, true});
  if (c.tree.empty()) {
    report.add({c.suite, c.name, "read", bytes / us / 1e3, "GB/s", limits.read_bytes_per_second / 1e9, "", std::nullopt,
                false});
  }
}

// What multiplies matrices for long is timed twice, and stands beside the matrix rate.
Status time_soaked(DeviceCase& device, const MeasuredCase& c, const CudaLimits& limits, BenchReport& report) {
  FOVEA_ASSIGN_OR_RETURN(const CudaBench::BurstAndSoaked times, device.burst_and_soaked_us());
  for (const auto& [metric, us] : {std::pair{"burst", times.burst_us}, {"soaked", times.soaked_us}}) {
    report.add({c.suite, c.name, metric, c.flops() / us / 1e6, "TFLOP/s", limits.flops_per_second / 1e12, "",
                std::nullopt, false});
    report.add({c.suite, c.name, fmt::format("{} time", metric), us, "us", std::nullopt, "", std::nullopt, true});
  }
  return ok_status();
}

// Geomeans of time over floor, as the prefix grid is judged: all cells, and those of the trees that share something.
void add_prefix_rows(const BenchReport& measured, BenchReport& report) {
  double all = 0.0, sharing = 0.0;
  int num_all = 0, num_sharing = 0;
  for (const BenchRow& row : measured.rows()) {
    if (row.suite != "prefix" || !row.limit) continue;
    const double ratio = std::log(row.value / *row.limit);
    all += ratio;
    ++num_all;
    if (std::stoi(row.name) <= 18) {
      sharing += ratio;
      ++num_sharing;
    }
  }
  if (num_all > 0) {
    report.add({"prefix", fmt::format("{} cells", num_all), "geomean of time / floor", std::exp(all / num_all), "x",
                std::nullopt, "", std::nullopt, true});
  }
  if (num_sharing > 0) {
    report.add({"prefix", fmt::format("{} cells of trees 1-18", num_sharing), "geomean of time / floor",
                std::exp(sharing / num_sharing), "x", std::nullopt, "", std::nullopt, true});
  }
}

// The launches that a profiler counts: their cases in order, on stdout.
Status launch_once(const CudaBench& bench, const std::vector<MeasuredCase>& cases, bool heads_first) {
  for (const MeasuredCase& c : cases) {
    FOVEA_ASSIGN_OR_RETURN(DeviceCase device, DeviceCase::create(bench, c, heads_first));
    FOVEA_RETURN_IF_ERROR(device.run(0));
    FOVEA_RETURN_IF_ERROR(bench.device().synchronize());
    std::printf("once %s\n", c.id().c_str());
    std::fflush(stdout);
  }
  return ok_status();
}

}  // namespace

Status bench_attention_cuda(const BenchAttentionFlags& flags) {
  if (flags.layout != "NHD" && flags.layout != "HND") {
    return invalid_argument("--layout is {}, expected NHD or HND", quote(flags.layout));
  }
  const bool limits_only = flags.suite == "limits", plans = flags.suite == "plan" || flags.suite == "all";
  std::vector<MeasuredCase> cases;
  const bool sparse_only = flags.suite == "sparse", ladder_only = flags.suite == "ladder";
  if (!limits_only && !sparse_only && !ladder_only && flags.suite != "plan") {
    FOVEA_ASSIGN_OR_RETURN(cases, measured_cases(flags.suite));
    std::erase_if(cases, [&](const MeasuredCase& c) { return !is_wanted(c.id(), flags.only); });
  }
  FOVEA_RETURN_IF_ERROR(check_output(flags.json));
  FOVEA_ASSIGN_OR_RETURN(const CudaBench bench, CudaBench::open(flags.device, flags.repeats));
  if (flags.once) return launch_once(bench, cases, flags.layout == "HND");
  FOVEA_ASSIGN_OR_RETURN(const CudaLimits limits, measure_cuda_limits(bench));
  BenchReport report;
  const cuda::DeviceInfo& info = bench.device().info();
  report.set_machine("gpu", info.name);
  report.set_machine("sms", static_cast<double>(info.num_sms));
  report.set_machine("l2_mb", static_cast<double>(info.l2_bytes) / 1e6);
  report.set_machine("driver", static_cast<double>(info.driver_version));
  report.set_machine("layout", flags.layout);
  report.set_machine("reader", limits.reader);
  report.set_machine("read_gb_per_s", limits.read_bytes_per_second / 1e9);
  report.set_machine("matrix_tflop_per_s", limits.flops_per_second / 1e12);
  report.set_machine("empty_node_us", limits.empty_node_us);
  int failed = 0;
  for (const MeasuredCase& c : cases) {
    auto device = DeviceCase::create(bench, c, flags.layout == "HND");
    if (device.ok() && c.suite == "prefill") {
      const Status timed = time_soaked(*device, c, limits, report);
      if (timed.ok()) continue;
      std::fprintf(stderr, "%s: %s\n", c.id().c_str(), timed.to_string().c_str());
      ++failed;
      continue;
    }
    Result<double> us = device.ok() ? device->time_us() : Result<double>(device.status());
    if (us.ok()) {
      add_rows(c, *us, limits, report);
      continue;
    }
    std::fprintf(stderr, "%s: %s\n", c.id().c_str(), us.status().to_string().c_str());
    ++failed;
  }
  add_prefix_rows(BenchReport(report), report);
  Status sparse = ok_status();
  if (sparse_only) sparse = bench_cuda_sparse(bench, limits, report);
  if (ladder_only) FOVEA_RETURN_IF_ERROR(bench_ladder(bench, limits, report));
  if (plans) FOVEA_RETURN_IF_ERROR(bench_cuda_host(bench, report));
  FOVEA_RETURN_IF_ERROR(report.emit(flags.json));
  FOVEA_RETURN_IF_ERROR(sparse);
  if (failed > 0) return make_status(StatusCode::kInternal, "{} cases failed, see above", failed);
  return ok_status();
}

}  // namespace fovea::app
