// `fovea bench attention --device cuda:N`: the measured cases through the public API: pages in random order, KV rotated
// over more than the L2, graph replays, beside what the device reads at most; and how long planning takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/half.h"
#include "base/status.h"
#include "bench_attention.h"
#include "bench_cuda.h"
#include "bench_report.h"
#include "console.h"
#include "fovea/attention.h"
#include "workload/attention_cases.h"
#include "workload/lengths.h"

namespace fovea::app {
namespace {

constexpr double kRotatedBytes =
    400e6;                          // KV that the calls of a graph go through, so that none finds its own in the L2
constexpr double kGraphUs = 600.0;  // a replay costs some microseconds of its own
constexpr int kMostCalls = 400;
constexpr int kHostCalls = 60;

// A case on the device: copies of the KV under one page table, queries, outputs, and the planned attention.
class DeviceCase {
 public:
  static Result<DeviceCase> create(const CudaBench& bench, const MeasuredCase& c, bool heads_first) {
    DeviceCase d(bench, c, heads_first);
    d.batch_ = c.batch(1);
    d.sets_ = std::max(1, static_cast<int>(std::ceil(kRotatedBytes / c.kv_bytes())));
    const bool fp8 = c.kv_dtype == DType::kF8E4M3;
    const std::size_t bytes = d.pool_bytes() * static_cast<std::size_t>(d.sets_);
    // Both signs; magnitudes from 0.25 up to 1 (e4m3: 0.25 up to 0.97).
    const std::uint16_t keep = fp8 ? 0x8f8f : 0x80ff, set = fp8 ? 0x2828 : 0x3e80;
    FOVEA_ASSIGN_OR_RETURN(d.k_, bench.random(bytes, keep, set));
    FOVEA_ASSIGN_OR_RETURN(d.v_, bench.random(bytes, keep, set));
    FOVEA_ASSIGN_OR_RETURN(d.q_, bench.random(d.row_bytes(), 0x80ff, 0x3e80));
    FOVEA_ASSIGN_OR_RETURN(d.out_, bench.random(d.row_bytes(), 0, 0x7fff));  // NaN
    AttentionOptions o;
    o.device = fmt::format("cuda:{}", bench.device().index());
    o.num_qo_heads = c.qo_heads;
    o.num_kv_heads = c.kv_heads;
    o.head_dim = c.head_dim;
    o.kv_dtype = c.kv_dtype;
    o.page_tokens = c.page_tokens;
    o.softcap = c.softcap;
    o.max_requests = d.batch_.num_requests();
    o.max_rows = d.batch_.num_rows();
    o.max_pages_per_request = d.batch_.stride;
    FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(o));
    d.attention_.emplace(std::move(attention));
    FOVEA_RETURN_IF_ERROR(d.plan());
    return d;
  }

  Status plan() {
    RequestBatch batch;
    batch.num_requests = batch_.num_requests();
    batch.q_lens = batch_.q_lens.data();
    batch.kv_lens = batch_.kv_lens.data();
    batch.page_indices = batch_.page_table.data();
    batch.num_page_indices = static_cast<std::int64_t>(batch_.page_table.size());
    batch.page_stride = batch_.stride;
    if (pages_.data() != nullptr) {
      batch.page_indices = pages_.as<std::int32_t>();
      batch.page_indices_device = DeviceKind::kCuda;
    }
    batch.mask = static_cast<AttentionMask>(batch_.mask);
    batch.window_left = batch_.window_left;
    return attention_->plan(batch, {bench_.stream()});
  }
  Status grow() {
    for (std::int32_t& tokens : batch_.kv_lens) ++tokens;
    return attention_->grow(batch_.kv_lens, {bench_.stream()});
  }

  // From now on page lists are those on the device, where nothing looks for shared prefixes, and requests are `tokens`
  // shorter than their lists.
  Status keep_lists_on_device(std::int32_t tokens) {
    const cuda::ScopedContext context(bench_.device());
    const std::size_t bytes = batch_.page_table.size() * 4;
    FOVEA_ASSIGN_OR_RETURN(pages_, cuda::DeviceBuffer::create(bench_.device(), bytes));
    FOVEA_RETURN_IF_ERROR(
        cuda::copy_to_device(bench_.device(), pages_.data(), batch_.page_table.data(), bytes, bench_.stream()));
    for (std::int32_t& n : batch_.kv_lens) n -= tokens;
    return ok_status();
  }

  Status run(int set) {
    const std::size_t at = pool_bytes() * static_cast<std::size_t>(set);
    PagedKv kv;
    kv.layout = heads_first_ ? KvLayout::kHND : KvLayout::kNHD;
    kv.k = pool(k_.as<std::byte>() + at);
    kv.v = pool(v_.as<std::byte>() + at);
    return attention_->run(rows(q_), kv, rows(out_), {}, {bench_.stream()});
  }

  Result<double> time_us() {
    const double guess = std::max(case_.kv_bytes() / 4e6, 5.0);
    const int calls = std::clamp(static_cast<int>(kGraphUs / guess), sets_, std::max(sets_, kMostCalls));
    FOVEA_ASSIGN_OR_RETURN(const double us, bench_.replay_us(calls, [&](int call) { return run(call % sets_); }));
    FOVEA_RETURN_IF_ERROR(check_output());
    return us;
  }

  AttentionStats stats() const { return attention_->stats(); }

 private:
  DeviceCase(const CudaBench& bench, MeasuredCase c, bool heads_first)
      : bench_(bench), case_(std::move(c)), heads_first_(heads_first) {}

  std::size_t pool_bytes() const {
    const std::int64_t elements = std::int64_t{batch_.num_pages} * case_.page_tokens * case_.kv_heads * case_.head_dim;
    return static_cast<std::size_t>(elements * dtype_bits(case_.kv_dtype) / 8);
  }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(batch_.num_rows()) * static_cast<std::size_t>(case_.qo_heads * case_.head_dim) * 2;
  }
  TensorView on_device(TensorView view) const {
    view.device = DeviceKind::kCuda;
    view.device_index = bench_.device().index();
    return view;
  }
  TensorView pool(const void* data) const {
    const std::int32_t first = heads_first_ ? case_.kv_heads : case_.page_tokens;
    const std::int32_t second = heads_first_ ? case_.page_tokens : case_.kv_heads;
    return on_device(cpu_tensor(data, case_.kv_dtype, batch_.num_pages, first, second, case_.head_dim));
  }
  TensorView rows(const cuda::DeviceBuffer& buffer) const {
    return on_device(cpu_tensor(buffer.data(), DType::kBF16, batch_.num_rows(), case_.qo_heads, case_.head_dim));
  }
  // Averages of values below 1 are below 1. Tests judge results; this catches a benchmark of nothing.
  Status check_output() const {
    const cuda::ScopedContext context(bench_.device());
    std::vector<std::uint16_t> out(row_bytes() / 2);
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(bench_.device(), out.data(), out_.data(), row_bytes(), bench_.stream()));
    FOVEA_RETURN_IF_ERROR(bench_.device().synchronize());
    for (const std::uint16_t bits : out) {
      if (!(std::abs(bf16_to_float(bits)) <= 1.0f)) {
        return make_status(StatusCode::kInternal, "{}: an output is {}, expected an average of values below 1",
                           case_.id(), bf16_to_float(bits));
      }
    }
    return ok_status();
  }

  const CudaBench& bench_;
  MeasuredCase case_;
  bool heads_first_;
  PagedBatch batch_;
  int sets_ = 1;
  cuda::DeviceBuffer k_, v_, q_, out_, pages_;
  std::optional<Attention> attention_;
};

void add_rows(const MeasuredCase& c, double us, const CudaLimits& limits, BenchReport& report) {
  const double bytes = c.kv_bytes() + c.qo_bytes();
  const double floor = c.floor_us ? *c.floor_us : bytes / limits.read_bytes_per_second * 1e6;
  report.add({c.suite, c.name, "time", us, "us", floor, "", std::nullopt, true});
  if (c.tree.empty()) {
    report.add({c.suite, c.name, "read", bytes / us / 1e3, "GB/s", limits.read_bytes_per_second / 1e9, "", std::nullopt,
                false});
  }
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
    FOVEA_ASSIGN_OR_RETURN(const double host, host_us(bench, [&] { return device.plan(); }));
    report.add({"plan", name, "full, lists from the host", host, "us", std::nullopt, "", std::nullopt, true});
    FOVEA_RETURN_IF_ERROR(device.keep_lists_on_device(kHostCalls + 1));
    FOVEA_ASSIGN_OR_RETURN(const double full, host_us(bench, [&] { return device.plan(); }));
    FOVEA_ASSIGN_OR_RETURN(const double grown, host_us(bench, [&] { return device.grow(); }));
    report.add({"plan", name, "full, with the copy", full, "us", std::nullopt, "", std::nullopt, true});
    report.add({"plan", name, "grown, with the copy", grown, "us", std::nullopt, "", std::nullopt, true});
    report.add({"plan", name, "bytes copied", static_cast<double>(device.stats().plan_bytes) / 1024, "KiB",
                std::nullopt, "", std::nullopt, true});
  }
  return ok_status();
}

}  // namespace

Status bench_attention_cuda(const BenchAttentionFlags& flags) {
  if (flags.layout != "NHD" && flags.layout != "HND") {
    return invalid_argument("--layout is \"{}\", expected NHD or HND", flags.layout);
  }
  const bool limits_only = flags.suite == "limits", plans = flags.suite == "plan" || flags.suite == "all";
  std::vector<MeasuredCase> cases;
  if (!limits_only && flags.suite != "plan") {
    FOVEA_ASSIGN_OR_RETURN(cases, measured_cases(flags.suite));
  }
  FOVEA_RETURN_IF_ERROR(check_output(flags.json));
  FOVEA_ASSIGN_OR_RETURN(const CudaBench bench, CudaBench::open(flags.device, flags.repeats));
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
  report.set_machine("empty_node_us", limits.empty_node_us);
  int failed = 0;
  for (const MeasuredCase& c : cases) {
    if (c.id().find(flags.only) == std::string::npos) continue;
    auto device = DeviceCase::create(bench, c, flags.layout == "HND");
    Result<double> us = device.ok() ? device->time_us() : Result<double>(device.status());
    if (us.ok()) {
      add_rows(c, *us, limits, report);
      continue;
    }
    std::fprintf(stderr, "%s: %s\n", c.id().c_str(), us.status().to_string().c_str());
    ++failed;
  }
  add_prefix_rows(BenchReport(report), report);
  if (plans) FOVEA_RETURN_IF_ERROR(bench_plans(bench, report));
  FOVEA_RETURN_IF_ERROR(report.emit(flags.json));
  if (failed > 0) return make_status(StatusCode::kInternal, "{} cases failed, see above", failed);
  return ok_status();
}

}  // namespace fovea::app
