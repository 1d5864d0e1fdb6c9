// The sweep's runs on either device, and its tables: every case by its share of the floor, then the shares of the cases
// that have a feature in common, which is where a cliff shows.
#include "bench/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "attention/cuda_executor.h"
#include "base/status.h"
#include "bench/cuda.h"
#include "bench/device_case.h"
#include "bench/report.h"
#include "console.h"
#include "cpu/limits.h"
#include "cpu/simd.h"
#include "jit/compiler.h"
#include "machine/machine.h"
#include "workload/sweep_cases.h"

namespace fovea::app {
namespace {

constexpr double kMostBytesCpu = 48e6;
// Shorter cases are bound by what happens once, longer queries by what prefill kernels are for: reported, not judged.
constexpr double kJudgedUs = 20.0;
constexpr std::int32_t kJudgedQueries = 16;

struct Limits {
  double read_bytes_per_second, flops_per_second, empty_us;

  double floor_us(const MeasuredCase& c) const {
    const double bytes_us = (c.kv_bytes() + c.qo_bytes()) / read_bytes_per_second * 1e6;
    const double flops_us = flops_per_second > 0.0 ? c.flops() / flops_per_second * 1e6 : 0.0;
    return std::max(bytes_us, flops_us) + empty_us;
  }
};

// A case's time, and the other ways to run it where they were asked for, the best of them by name.
struct Measured {
  double us = 0.0;
  std::string other;
  double other_us = 0.0;
  std::string others;  // all of them, for the line on stderr
};

struct Timed {
  const MeasuredCase* c;
  double us, floor;
  Measured measured;
  double share() const { return floor / us; }
  bool judged() const { return floor >= kJudgedUs && most_q_tokens(*c) <= kJudgedQueries; }
};

std::string tokens_range(std::int32_t n) {
  return n <= 1 ? "1" : n <= 4 ? "2-4" : n <= 8 ? "5-8" : n <= 16 ? "9-16" : "more";
}

// What the tables group by: feature and value.
std::vector<std::pair<std::string, std::string>> features(const MeasuredCase& c) {
  std::int32_t empty = 0;
  double longest = 0.0, all = 0.0;
  for (const std::int32_t n : c.kv_lens) {
    empty += n == 0;
    longest = std::max(longest, static_cast<double>(n));
    all += n;
  }
  const std::int32_t group = c.qo_heads / c.kv_heads;
  const auto requests = c.kv_lens.size();
  return {{"kv", std::string(dtype_name(c.kv_dtype))},
          {"head dim", std::to_string(c.head_dim)},
          {"page", std::to_string(c.page_tokens)},
          {"query tokens", tokens_range(most_q_tokens(c))},
          {"group", group <= 8    ? "1-8"
                    : group <= 16 ? "9-16"
                                  : "more"},
          {"requests", requests <= 8     ? "1-8"
                       : requests <= 64  ? "9-64"
                       : requests <= 256 ? "65-256"
                                         : "more"},
          {"option", c.window > 0       ? "window"
                     : c.softcap > 0.0f ? "soft-cap"
                     : c.sinks          ? "sinks"
                                        : "none"},
          {"lengths", empty > 0                           ? "some empty"
                      : requests > 2 && 3 * longest > all ? "one long"
                                                          : "other"},
          {"prefixes", c.runs.empty() ? "none" : "shared"}};
}

struct Shares {
  double worst, p10, median;
};
Shares shares_of(std::vector<double> shares) {
  std::sort(shares.begin(), shares.end());
  const auto at = [&](double rank) {
    return shares[static_cast<std::size_t>(rank * static_cast<double>(shares.size() - 1))];
  };
  return {shares.front(), at(0.1), at(0.5)};
}

void add_shares(const std::string& name, const std::vector<double>& shares, BenchReport& report) {
  if (shares.empty()) return;
  const Shares s = shares_of(shares);
  const std::string what = fmt::format("{}: {} cases, worst {:.2f}, p10 {:.2f}", name, shares.size(), s.worst, s.p10);
  report.add({"sweep", what, "median share", s.median, "of the floor", std::nullopt, "", std::nullopt, false});
}

void add_rows(std::vector<Timed> timed, BenchReport& report) {
  std::sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.share() < b.share(); });
  std::vector<double> judged;
  std::map<std::pair<std::string, std::string>, std::vector<double>> by_feature;
  for (const Timed& t : timed) {
    const auto other = t.measured.other.empty() ? std::nullopt : std::optional(t.measured.other_us);
    report.add({t.c->suite, t.c->name, t.judged() ? "time" : "time, not judged", t.us, "us", t.floor, t.measured.other,
                other, true});
    if (t.judged()) judged.push_back(t.share());
    if (t.floor < kJudgedUs) continue;
    for (auto& feature : features(*t.c)) {
      if (t.judged() || feature == std::pair<std::string, std::string>{"query tokens", "more"})
        by_feature[feature].push_back(t.share());
    }
  }
  for (const auto& [feature, shares] : by_feature) {
    add_shares(fmt::format("{} {}", feature.first, feature.second), shares, report);
  }
  add_shares("all", judged, report);
}

using Timer = std::function<Result<Measured>(const MeasuredCase&)>;

// Cases that are refused or fail are named on stderr, and the run goes on.
Status time_all(const std::vector<MeasuredCase>& cases, const Limits& limits, const Timer& time, BenchReport& report) {
  std::vector<Timed> timed;
  int refused = 0, failed = 0;
  for (const MeasuredCase& c : cases) {
    const Result<Measured> us = time(c);
    if (us.ok()) {
      timed.push_back({&c, us->us, limits.floor_us(c), *us});
      const Timed& t = timed.back();
      std::fprintf(stderr, "%5.2f  %8.1f us  floor %8.1f  %s%s%s\n", t.share(), t.us, t.floor, c.name.c_str(),
                   us->others.empty() ? "" : " ", us->others.c_str());
      continue;
    }
    std::fprintf(stderr, "%s: %s\n", c.id().c_str(), us.status().to_string().c_str());
    ++(us.status().code() == StatusCode::kUnsupported ? refused : failed);
  }
  add_rows(std::move(timed), report);
  report.set_machine("cases_refused", refused);
  report.set_machine("cases_failed", failed);
  if (failed > 0) return make_status(StatusCode::kInternal, "{} cases failed, see above", failed);
  return ok_status();
}

// All kernels of the cases, on all cores, ahead of the first case.
void compile_all(const std::vector<MeasuredCase>& cases, bool alternatives, const cuda::DeviceInfo& device) {
  std::map<std::string, jit::KernelSource> sources;
  for (const MeasuredCase& c : cases) {
    AttentionOptions o = options_of(c, c.batch(1));
    static const float sink = 0.0f;
    if (c.sinks) o.sinks = cpu_tensor(&sink, DType::kF32, c.qo_heads);  // which nobody reads here
    for (const DecodeKernel kernel :
         {DecodeKernel::kAuto, DecodeKernel::kWarpPerWorker, DecodeKernel::kLowBatch, DecodeKernel::kPrefill}) {
      if (kernel != DecodeKernel::kAuto && (!alternatives || most_q_tokens(c) > 32 || !c.runs.empty())) continue;
      o.decode_kernel = kernel;
      auto kernels = attention_kernels(o, device.arch(), device.num_sms);
      if (!kernels.ok()) continue;  // the case says why
      for (jit::KernelSource& source : *kernels) {
        if (source.name.starts_with("attention")) sources.emplace(source.text, source);
      }
    }
  }
  std::vector<const jit::KernelSource*> list;
  for (const auto& [text, source] : sources) list.push_back(&source);
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at; (at = next.fetch_add(1)) < list.size();) (void)jit::Compiler::shared().get(*list[at]);
    });
  }
}

// Every schedule that could run the case, and the case with nothing shared.
Status time_others(DeviceCase& device, const MeasuredCase& c, Measured& best) {
  struct Other {
    const char* name;
    DecodeKernel kernel;
    bool share;
  };
  const AttentionOptions own = device.options();
  for (const Other& other :
       {Other{"general", DecodeKernel::kGeneral, true}, Other{"warps", DecodeKernel::kWarpPerWorker, true},
        Other{"few", DecodeKernel::kLowBatch, true}, Other{"prefill", DecodeKernel::kPrefill, true},
        Other{"unshared", DecodeKernel::kAuto, false}}) {
    const bool general = other.kernel == DecodeKernel::kGeneral;
    if (!c.runs.empty() ? other.share && !general : !other.share || (most_q_tokens(c) > 32 && !general)) continue;
    AttentionOptions o = own;
    o.decode_kernel = other.kernel;
    o.share_prefixes = other.share;
    FOVEA_RETURN_IF_ERROR(device.use(o));
    FOVEA_ASSIGN_OR_RETURN(const double us, device.time_us());
    best.others += fmt::format(" {} {:.1f}", other.name, us);
    if (best.other.empty() || us < best.other_us) {
      best.other = other.name;
      best.other_us = us;
    }
  }
  return ok_status();
}

Status sweep_cuda(const BenchAttentionFlags& flags, const std::vector<MeasuredCase>& cases, BenchReport& report) {
  FOVEA_ASSIGN_OR_RETURN(const CudaBench bench, CudaBench::open(flags.device, flags.repeats));
  const auto begin = std::chrono::steady_clock::now();
  compile_all(cases, flags.alternatives, bench.device().info());
  report.set_machine("compile_seconds",
                     std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  FOVEA_ASSIGN_OR_RETURN(const CudaLimits limits, measure_cuda_limits(bench));
  report.set_machine("gpu", bench.device().info().name);
  report.set_machine("read_gb_per_s", limits.read_bytes_per_second / 1e9);
  report.set_machine("matrix_tflop_per_s", limits.flops_per_second / 1e12);
  report.set_machine("empty_node_us", limits.empty_node_us);
  const auto time = [&](const MeasuredCase& c) -> Result<Measured> {
    FOVEA_ASSIGN_OR_RETURN(DeviceCase device, DeviceCase::create(bench, c, flags.layout == "HND"));
    Measured measured;
    FOVEA_ASSIGN_OR_RETURN(measured.us, device.time_us());
    if (flags.alternatives) FOVEA_RETURN_IF_ERROR(time_others(device, c, measured));
    return measured;
  };
  return time_all(cases, {limits.read_bytes_per_second, limits.flops_per_second, limits.empty_node_us}, time, report);
}

// 16-bit words (word & keep) | set.
std::vector<std::uint16_t> random_words(std::size_t bytes, std::uint16_t keep, std::uint16_t set) {
  std::vector<std::uint16_t> words(bytes / 2 + 1);
  std::uint32_t x = 2463534242u;
  for (std::uint16_t& word : words) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    word = static_cast<std::uint16_t>((x & keep) | set);
  }
  return words;
}

// Median microseconds of the case on the CPU, through the public API.
Result<Measured> time_on_cpu(const MeasuredCase& c, int repeats) {
  const PagedBatch batch = c.batch(1);
  AttentionOptions o = options_of(c, batch);
  const bool integers = c.kv_dtype == DType::kI8 || c.kv_dtype == DType::kI4;
  const std::uint16_t half = c.q_dtype == DType::kF16 ? 0x3400 : 0x3e80;
  const std::int64_t tokens = std::int64_t{batch.num_pages} * c.page_tokens * c.kv_heads;
  const auto pool_bytes = static_cast<std::size_t>(tokens * c.head_dim * dtype_bits(c.kv_dtype) / 8);
  const bool fp8 = c.kv_dtype == DType::kF8E4M3;
  const std::vector<std::uint16_t> values = random_words(pool_bytes,
                                                         integers ? 0xffff
                                                         : fp8    ? 0x8f8f
                                                                  : 0x80ff,
                                                         integers ? 0
                                                         : fp8    ? 0x2828
                                                                  : half);
  const std::vector<std::uint16_t> scales =
      random_words(integers ? static_cast<std::size_t>(tokens) * 4 : 0, 0x00f8, 0x1800);
  const std::int64_t rows = batch.num_rows();
  const auto row_bytes = static_cast<std::size_t>(rows * c.qo_heads * c.head_dim) * 2;
  const std::vector<std::uint16_t> q = random_words(row_bytes, 0x80ff, half);
  std::vector<std::uint16_t> out(q.size());
  const std::vector<float> sinks(static_cast<std::size_t>(c.qo_heads), 0.5f);
  if (c.sinks) o.sinks = cpu_tensor(sinks.data(), DType::kF32, c.qo_heads);
  FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(o));
  RequestBatch request;
  request.num_requests = batch.num_requests();
  request.q_lens = batch.q_lens.data();
  request.kv_lens = batch.kv_lens.data();
  request.page_indices = batch.page_table.data();
  request.num_page_indices = static_cast<std::int64_t>(batch.page_table.size());
  request.page_stride = batch.stride;
  request.mask = static_cast<AttentionMask>(batch.mask);
  request.window_left = batch.window_left;
  FOVEA_RETURN_IF_ERROR(attention.plan(request));
  PagedKv kv;
  kv.k = kv.v = cpu_tensor(values.data(), c.kv_dtype, batch.num_pages, c.page_tokens, c.kv_heads, c.head_dim);
  if (integers) {
    kv.k_scale = kv.v_scale = cpu_tensor(scales.data(), DType::kF16, batch.num_pages, c.kv_heads, c.page_tokens, 2);
  }
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    FOVEA_RETURN_IF_ERROR(attention.run(cpu_tensor(q.data(), c.q_dtype, rows, c.qo_heads, c.head_dim), kv,
                                        cpu_tensor(out.data(), c.q_dtype, rows, c.qo_heads, c.head_dim)));
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0) times.push_back(us);
  }
  std::sort(times.begin(), times.end());
  return Measured{times[times.size() / 2], "", 0.0, ""};
}

Status sweep_cpu(const BenchAttentionFlags& flags, const std::vector<MeasuredCase>& cases, BenchReport& report) {
  FOVEA_RETURN_IF_ERROR(cpu::set_simd_cap(flags.simd));
  ThreadPool threads(default_num_threads());
  report.set_machine("cpu", read_machine().cpu);
  report.set_machine("threads", threads.size());
  report.set_machine("simd", std::string(cpu::simd_target()));
  Limits limits{0.0, cpu::measure_fma_flops(threads), 0.0};
  const std::vector<std::uint16_t> memory = random_words(std::size_t{512} << 20, 0xffff, 0);
  limits.read_bytes_per_second = cpu::measure_read(memory.data(), std::int64_t{512} << 20, 3, threads).bytes_per_second;
  report.set_machine("read_gb_per_s", limits.read_bytes_per_second / 1e9);
  report.set_machine("fma_gflop_per_s", limits.flops_per_second / 1e9);
  return time_all(
      cases, limits, [&](const MeasuredCase& c) { return time_on_cpu(c, flags.repeats); }, report);
}

}  // namespace

std::vector<MeasuredCase> sweep_of(const BenchAttentionFlags& flags) {
  const bool cpu = flags.device == "cpu" && !flags.list;
  return sweep_cases(static_cast<std::uint64_t>(flags.seed), flags.cases, cpu ? kMostBytesCpu : kMostSweepBytes);
}

Status bench_sweep(const BenchAttentionFlags& flags) {
  std::vector<MeasuredCase> cases = sweep_of(flags);
  if (flags.suite != "sweep") {
    FOVEA_ASSIGN_OR_RETURN(cases, measured_cases(flags.suite));
  }
  std::erase_if(cases, [&](const MeasuredCase& c) { return !is_wanted(c.id(), flags.only); });
  FOVEA_RETURN_IF_ERROR(check_output(flags.json));
  BenchReport report;
  report.set_machine("seed", flags.seed);
  const Status status = flags.device == "cpu" ? sweep_cpu(flags, cases, report) : sweep_cuda(flags, cases, report);
  FOVEA_RETURN_IF_ERROR(report.emit(flags.json));
  return status;
}

}  // namespace fovea::app
