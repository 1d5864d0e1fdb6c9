// `fovea bench attention` on the CPU: attention beside what this machine can do at most, measured in the same run:
// paged decode (bytes a second), decode over a shared prefix (against private copies), causal prefill (flops a second).
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"
#include "bench/attention.h"
#include "bench/report.h"
#include "console.h"
#include "core/plan/planner.h"
#include "cpu/attention/attention.h"
#include "cpu/limits.h"
#include "cpu/simd.h"
#include "machine/machine.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea::app {
namespace {

// Memory in huge pages where the kernel gives them, so that page walks do not stand in the way of a stream.
class BigBuffer {
 public:
  explicit BigBuffer(std::size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    madvise(p, bytes_, MADV_HUGEPAGE);
    data_ = p;
  }
  BigBuffer(const BigBuffer&) = delete;
  ~BigBuffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  void* data() const { return data_; }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* data_ = nullptr;
};

// bf16 values in (-1, 1), cheap enough for gigabytes.
void fill_bf16(void* data, std::size_t bytes, std::uint64_t seed, ThreadPool& threads) {
  auto* words = static_cast<std::uint64_t*>(data);
  threads.parallel_for(static_cast<std::int64_t>(bytes / 8), 1 << 18, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(begin) + 1;
    for (std::int64_t i = begin; i < end; ++i) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      // Sign and mantissa at random, exponent 2^-2 or 2^-1.
      words[i] = (x & 0x80ff80ff80ff80ffu) | 0x3e803e803e803e80u;
    }
  });
}

struct Shape {
  int qo_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  bool heads_first = true;
};

struct Limits {
  double read = 0.0;  // bytes a second
  double flops = 0.0;
};

struct Measured {
  double seconds = 0.0;
  PlanStats stats;
};

class Runner {
 public:
  Runner(const BenchAttentionFlags& s, ThreadPool& threads) : state_(s), threads_(threads) {}

  // Median seconds of attention over the batch, planned for the pool's threads.
  Result<Measured> measure(const PagedBatch& batch, const Shape& shape, bool share) {
    PlannerOptions options;
    options.num_qo_heads = shape.qo_heads;
    options.num_kv_heads = shape.kv_heads;
    options.head_dim = shape.head_dim;
    options.page_tokens = batch.page_tokens;
    options.num_workers = threads_.size();
    options.share_prefixes = share;
    options.limits = batch.limits();
    FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(options));
    FOVEA_RETURN_IF_ERROR(planner.plan(batch.view()));

    const std::int64_t page_elements = std::int64_t{batch.page_tokens} * shape.kv_heads * shape.head_dim;
    const std::size_t bytes = static_cast<std::size_t>(page_elements) * static_cast<std::size_t>(batch.num_pages) * 2;
    const BigBuffer k(bytes), v(bytes);
    if (k.data() == nullptr || v.data() == nullptr)
      return resource_exhausted("no memory for {} bytes of KV", 2 * bytes);
    fill_bf16(k.data(), bytes, 1, threads_);
    fill_bf16(v.data(), bytes, 2, threads_);
    abi::KvPoolView pool{};
    pool.k = k.data();
    pool.v = v.data();
    pool.dtype = abi::KvDType::kBF16;
    pool.num_pages = batch.num_pages;
    pool.page_tokens = pool.entry_tokens = batch.page_tokens;
    pool.entries_per_page = 1;
    pool.page_stride = page_elements;
    pool.token_stride = shape.heads_first ? shape.head_dim : shape.kv_heads * shape.head_dim;
    pool.head_stride = shape.heads_first ? std::int64_t{batch.page_tokens} * shape.head_dim : shape.head_dim;

    const std::int64_t rows = batch.num_rows();
    std::vector<float> q(static_cast<std::size_t>(rows * shape.qo_heads * shape.head_dim)), out(q.size());
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] = static_cast<float>(static_cast<int>(i * 7919 % 201) - 100) / 100.0f;
    AttentionParams params;
    params.sm_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params.products = state_.products == "bf16" ? AttentionProducts::kBF16 : AttentionProducts::kF32;
    std::vector<double> times;
    for (int i = 0; i <= state_.repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      FOVEA_RETURN_IF_ERROR(cpu::run_attention(
          planner.view(), params, VariantId::kPlain,
          cpu_tensor(q.data(), DType::kF32, rows, shape.qo_heads, shape.head_dim), &pool, 1,
          cpu_tensor(out.data(), DType::kF32, rows, shape.qo_heads, shape.head_dim), nullptr, workspace_, threads_));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (i > 0) times.push_back(seconds);
    }
    std::sort(times.begin(), times.end());
    return Measured{times[times.size() / 2], planner.stats()};
  }

 private:
  const BenchAttentionFlags& state_;
  ThreadPool& threads_;
  cpu::AttentionWorkspace workspace_;
};

std::string case_name(int requests, int tokens, const Shape& shape, int page) {
  return fmt::format("B{} S{} {}/{} D{} page {}{}", requests, tokens, shape.qo_heads, shape.kv_heads, shape.head_dim,
                     page, shape.heads_first ? "" : " NHD");
}

// Two multiply-adds a (query head, token, element) pair: one for the logit, one for the output.
double attention_flops(double pairs, const Shape& shape) { return 4.0 * pairs * shape.qo_heads * shape.head_dim; }

Status bench_decode(const BenchAttentionFlags& s, Runner& runner, const Limits& limits, BenchReport& report) {
  const Shape shapes[] = {{32, 8, 128, true}, {64, 8, 128, true}, {32, 32, 128, true}, {32, 8, 128, false}};
  for (const Shape& shape : shapes) {
    const double token_bytes = 4.0 * shape.kv_heads * shape.head_dim;
    const int tokens = 4096;
    const int requests = std::max(2, static_cast<int>(std::ceil(s.kv_gb * 1e9 / token_bytes / tokens)));
    const PagedBatch batch =
        flat_batch(constant_lengths(requests, 1), constant_lengths(requests, tokens), s.page, PageOrder::kRandom, 3);
    FOVEA_ASSIGN_OR_RETURN(const Measured m, runner.measure(batch, shape, false));
    const std::string name = case_name(requests, tokens, shape, s.page);
    const double pairs = static_cast<double>(requests) * tokens;
    report.add({"decode", name, "read", pairs * token_bytes / m.seconds / 1e9, "GB/s", limits.read / 1e9, "",
                std::nullopt, false});
    report.add({"decode", name, "fma", attention_flops(pairs, shape) / m.seconds / 1e9, "GFLOP/s", limits.flops / 1e9,
                "", std::nullopt, false});
  }
  return ok_status();
}

Status bench_prefix(const BenchAttentionFlags& s, Runner& runner, const Limits& limits, BenchReport& report) {
  const Shape shape{32, 32, 128, true};
  const int requests = 64, prefix = 4096, own = 256;
  const PagedBatch shared = tree_batch(PrefixTree{{1, requests}, {prefix, own}}, s.page, 1, PageOrder::kRandom, 3);
  const PagedBatch copies = flat_batch(constant_lengths(requests, 1), constant_lengths(requests, prefix + own), s.page,
                                       PageOrder::kRandom, 3);
  const std::string name = fmt::format("B{} prefix {} own {} {}/{} D{}", requests, prefix, own, shape.qo_heads,
                                       shape.kv_heads, shape.head_dim);
  FOVEA_ASSIGN_OR_RETURN(const Measured packed, runner.measure(shared, shape, true));
  FOVEA_ASSIGN_OR_RETURN(const Measured unpacked, runner.measure(shared, shape, false));
  FOVEA_ASSIGN_OR_RETURN(const Measured copied, runner.measure(copies, shape, false));
  const double pairs = static_cast<double>(requests) * (prefix + own);
  const double floor =
      std::max(static_cast<double>(packed.stats.kv_bytes) / limits.read, attention_flops(pairs, shape) / limits.flops);
  report.add({"prefix", name, "time", packed.seconds * 1e3, "ms", floor * 1e3, "", std::nullopt, true});
  report.add({"prefix", name, "speed over private copies", copied.seconds / packed.seconds, "x", std::nullopt, "",
              std::nullopt, false});
  report.add({"prefix", name, "speed over the same pages unpacked", unpacked.seconds / packed.seconds, "x",
              std::nullopt, "", std::nullopt, false});
  report.add({"prefix", name, "bytes of private copies / read",
              static_cast<double>(copied.stats.kv_bytes) / static_cast<double>(packed.stats.kv_bytes), "x",
              std::nullopt, "", std::nullopt, false});
  return ok_status();
}

// A row of what bench/peers/attention_cpu.py writes.
struct PeerTime {
  std::string peer;
  std::int64_t tokens, qo_heads, kv_heads;
  double seconds;
};

Result<std::vector<PeerTime>> read_peers(const std::string& path) {
  std::vector<PeerTime> peers;
  if (path.empty()) return peers;
  std::string text;
  FOVEA_RETURN_IF_ERROR(read_input(path, &text));
  FOVEA_ASSIGN_OR_RETURN(const Json rows, parse_json(text, path));
  if (!rows.is_array()) return invalid_argument("{} is no JSON list of peer rows", shorten(path));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const JsonReader row,
                           JsonReader::create(rows[i], fmt::format("{}: [{}]", shorten(path), i)));
    PeerTime& time = peers.emplace_back();
    FOVEA_ASSIGN_OR_RETURN(time.peer, row.string("peer"));
    FOVEA_ASSIGN_OR_RETURN(time.tokens, row.integer("tokens"));
    FOVEA_ASSIGN_OR_RETURN(time.qo_heads, row.integer("qo_heads"));
    FOVEA_ASSIGN_OR_RETURN(time.kv_heads, row.integer("kv_heads"));
    FOVEA_ASSIGN_OR_RETURN(time.seconds, row.number("seconds"));
    if (!(time.seconds > 0.0))
      return invalid_argument("{} is {}, expected more than 0", row.path("seconds"), time.seconds);
  }
  return peers;
}

Status bench_prefill(const BenchAttentionFlags& s, const std::vector<PeerTime>& peers, Runner& runner,
                     const Limits& limits, BenchReport& report) {
  for (const int tokens : {2048, 8192}) {
    for (const Shape& shape : {Shape{8, 8, 128, true}, Shape{32, 8, 128, true}}) {
      const PagedBatch batch =
          flat_batch(constant_lengths(1, tokens), constant_lengths(1, tokens), s.page, PageOrder::kRandom, 3);
      FOVEA_ASSIGN_OR_RETURN(const Measured m, runner.measure(batch, shape, false));
      const double pairs = 0.5 * tokens * (tokens + 1.0);
      const double rate = attention_flops(pairs, shape) / m.seconds / 1e9;
      bool any = false;
      for (const PeerTime& row : peers) {
        if (row.tokens != tokens || row.qo_heads != shape.qo_heads || row.kv_heads != shape.kv_heads) continue;
        any = true;
        const double peer_rate = attention_flops(pairs, shape) / row.seconds / 1e9;
        report.add({"prefill", case_name(1, tokens, shape, s.page), "causal", rate, "GFLOP/s", limits.flops / 1e9,
                    row.peer, peer_rate, false});
      }
      if (!any) {
        report.add({"prefill", case_name(1, tokens, shape, s.page), "causal", rate, "GFLOP/s", limits.flops / 1e9, "",
                    std::nullopt, false});
      }
    }
  }
  return ok_status();
}

}  // namespace

Status bench_attention_cpu(const BenchAttentionFlags& s) {
  const bool all = s.suite == "all";
  if (!all && s.suite != "decode" && s.suite != "prefix" && s.suite != "prefill") {
    return invalid_argument("--suite is {}, expected all, decode, prefix, prefill, sweep or cliffs", quote(s.suite));
  }
  if (s.products != "bf16" && s.products != "f32") {
    return invalid_argument("--products is {}, expected bf16 or f32", quote(s.products));
  }
  if (s.threads < 0 || s.page < 1 || s.repeats < 1 || !(s.kv_gb > 0.0) || !(s.read_gb > 0.0)) {
    return invalid_argument("--page, --repeats, --kv-gb and --read-gb must be positive, --threads not negative");
  }
  const Machine machine = read_machine();
  const double wanted = std::max(s.kv_gb, s.read_gb) * 1e9;
  if (wanted > 0.9 * static_cast<double>(machine.memory_available)) {
    return resource_exhausted("--kv-gb and --read-gb ask for {}, this machine has {} left", format_bytes(wanted),
                              format_bytes(static_cast<double>(machine.memory_available)));
  }
  if (s.page > 65536 || s.threads > 4096) return invalid_argument("--page is at most 65536, --threads at most 4096");
  FOVEA_RETURN_IF_ERROR(check_output(s.json));
  FOVEA_ASSIGN_OR_RETURN(const std::vector<PeerTime> peers, read_peers(s.peers));
  FOVEA_RETURN_IF_ERROR(cpu::set_simd_cap(s.simd));
  ThreadPool threads(s.threads > 0 ? s.threads : default_num_threads());
  BenchReport report;
  report.set_machine("cpu", machine.cpu);
  report.set_machine("threads", static_cast<double>(threads.size()));
  report.set_machine("simd", std::string(cpu::simd_target()));
  report.set_machine("products", s.products);
  Limits limits;
  limits.flops = cpu::measure_fma_flops(threads);
  {
    const auto bytes = static_cast<std::size_t>(s.read_gb * 1e9);
    const BigBuffer buffer(bytes);
    if (buffer.data() == nullptr) return resource_exhausted("no memory for a read of {} bytes", bytes);
    fill_bf16(buffer.data(), bytes, 5, threads);
    const cpu::ReadLimit read = cpu::measure_read(buffer.data(), static_cast<std::int64_t>(bytes), 3, threads);
    limits.read = read.bytes_per_second;
    report.set_machine("reader", read.reader);
  }
  report.set_machine("read_gb_per_s", limits.read / 1e9);
  report.set_machine("fma_gflop_per_s", limits.flops / 1e9);
  Runner runner(s, threads);
  if (all || s.suite == "decode") FOVEA_RETURN_IF_ERROR(bench_decode(s, runner, limits, report));
  if (all || s.suite == "prefix") FOVEA_RETURN_IF_ERROR(bench_prefix(s, runner, limits, report));
  if (all || s.suite == "prefill") FOVEA_RETURN_IF_ERROR(bench_prefill(s, peers, runner, limits, report));
  return report.emit(s.json);
}

}  // namespace fovea::app
