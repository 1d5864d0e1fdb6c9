// Buffers and timing of bench/sparse.h. Codes, queries and page orders are random: near-uniform scores, no locality.
#include "bench/sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/status.h"
#include "fovea/page_selector.h"

namespace fovea::app {
namespace {

constexpr std::int32_t kTokens = 131072, kBudget = 4096, kPage = 16, kHeads = 8, kGroup = 4, kDim = 128;
constexpr std::int32_t kPagesEach = kTokens / kPage, kListPages = kBudget / kPage, kCandidates = 4 * kListPages;
constexpr std::int32_t kInterval = 4;
constexpr double kRotatedBytes = 150e6;                                 // more than the L2 holds
constexpr std::size_t kRecordBytes = std::size_t{kHeads} * kPage * 16;  // of a page

class SparseStep {
 public:
  SparseStep(const CudaBench& bench, std::int32_t requests, DType kv_dtype)
      : bench_(bench), requests_(requests), kv_dtype_(kv_dtype) {}

  Status create() {
    const cuda::ScopedContext context(bench_.device());
    const std::size_t pages = static_cast<std::size_t>(requests_) * kPagesEach;
    const double rescored = static_cast<double>(requests_) * (kCandidates + 1) * static_cast<double>(kRecordBytes);
    // A multiple of the interval, so that those which scan in a graph of both always do.
    code_sets_ = static_cast<int>(std::ceil(kRotatedBytes / rescored / kInterval)) * kInterval;
    const double read = static_cast<double>(requests_) * kBudget * static_cast<double>(token_bytes());
    kv_sets_ = std::max(1, static_cast<int>(std::ceil(kRotatedBytes / read)));
    const bool fp8 = kv_dtype_ == DType::kF8E4M3;
    const std::uint16_t keep = fp8 ? 0x8f8f : 0x80ff, set = fp8 ? 0x2828 : 0x3e80;
    const std::size_t pool = pool_bytes() * static_cast<std::size_t>(kv_sets_);
    FOVEA_ASSIGN_OR_RETURN(k_, bench_.random(pool, keep, set));
    FOVEA_ASSIGN_OR_RETURN(v_, bench_.random(pool, keep, set));
    const std::size_t rows = static_cast<std::size_t>(requests_) * kHeads * kGroup * kDim * 2;
    FOVEA_ASSIGN_OR_RETURN(q_, bench_.random(rows, 0x80ff, 0x3e80));
    FOVEA_ASSIGN_OR_RETURN(out_, bench_.random(rows, 0, 0x7fff));
    // All pages of the requests, then the lists.
    std::vector<std::int32_t> entries(pages);
    std::iota(entries.begin(), entries.end(), 0);
    std::shuffle(entries.begin(), entries.end(), std::mt19937_64(1));
    lists_at_ = entries.size();
    entries.resize(pages + static_cast<std::size_t>(requests_) * kHeads * kListPages);
    FOVEA_RETURN_IF_ERROR(upload(entries, entries_));
    FOVEA_RETURN_IF_ERROR(create_selector());
    const std::vector<std::int32_t> scan(static_cast<std::size_t>(requests_), 1);
    FOVEA_RETURN_IF_ERROR(upload(scan, scan_phases_));
    FOVEA_ASSIGN_OR_RETURN(list_tokens_,
                           cuda::DeviceBuffer::create(bench_.device(), static_cast<std::size_t>(requests_) * 4, true));
    AttentionOptions o;
    o.device = fmt::format("cuda:{}", bench_.device().index());
    o.kv_dtype = kv_dtype_;
    o.max_requests = o.max_rows = o.max_selected = requests_;
    o.max_pages_per_request = kPagesEach;
    FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(o));
    attention_.emplace(std::move(attention));
    return bench_.device().synchronize();
  }

  Status set_length(std::int32_t tokens) {
    const cuda::ScopedContext context(bench_.device());
    kv_lens_.assign(static_cast<std::size_t>(requests_), tokens);
    return upload(kv_lens_, lens_);
  }

  // A scan of all units where `scans`, or where no scan was made one token before; else of candidates.
  Status select(int call, bool scans) {
    SelectStep now = step();
    now.phases = scans ? ints(scan_phases_, requests_) : TensorView{};
    return selector_->select(call % code_sets_, rows(q_), now, {bench_.stream()});
  }
  int code_sets() const { return code_sets_; }

  Status plan_selected() { return selector_->plan(*attention_, kv_lens_, step(), {bench_.stream()}); }
  Status plan_dense() {
    const std::vector<std::int32_t> q_lens(static_cast<std::size_t>(requests_), 1);
    RequestBatch batch;
    batch.num_requests = requests_;
    batch.q_lens = q_lens.data();
    batch.kv_lens = kv_lens_.data();
    batch.page_indices = entries_.as<std::int32_t>();
    batch.page_indices_device = DeviceKind::kCuda;
    batch.page_stride = kPagesEach;
    return attention_->plan(batch, {bench_.stream()});
  }
  // Of an object that captured nothing yet: graphs keep the addresses of lists.
  Status renew() {
    const AttentionOptions o = attention_->options();
    FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(o));
    attention_.emplace(std::move(attention));
    return ok_status();
  }
  Status attend(int call) {
    const std::size_t at = pool_bytes() * static_cast<std::size_t>(call % kv_sets_);
    PagedKv kv;
    kv.k = on_device(cpu_tensor(k_.as<std::byte>() + at, kv_dtype_, requests_ * kPagesEach, kPage, kHeads, kDim));
    kv.v = on_device(cpu_tensor(v_.as<std::byte>() + at, kv_dtype_, requests_ * kPagesEach, kPage, kHeads, kDim));
    return attention_->run(rows(q_), kv, rows(out_), {}, {bench_.stream()});
  }
  Result<std::vector<std::uint16_t>> output() const {
    const cuda::ScopedContext context(bench_.device());
    std::vector<std::uint16_t> out(static_cast<std::size_t>(requests_) * kHeads * kGroup * kDim);
    FOVEA_RETURN_IF_ERROR(
        cuda::copy_to_host(bench_.device(), out.data(), out_.data(), out.size() * 2, bench_.stream()));
    FOVEA_RETURN_IF_ERROR(bench_.device().synchronize());
    return out;
  }

 private:
  // A set of codes is a layer.
  Status create_selector() {
    PageSelectorOptions o;
    o.device = fmt::format("cuda:{}", bench_.device().index());
    o.budget_tokens = kBudget;
    o.interval = kInterval;
    o.num_layers = code_sets_;
    o.num_pages = requests_ * kPagesEach;
    o.max_requests = requests_;
    o.max_pages_per_request = kPagesEach;
    KeyCode code{};
    for (std::int32_t i = 0; i < kKeyCodeChannels; ++i) {
      code.channel[i] = static_cast<std::uint8_t>(4 * i);
      code.step[i] = 0.3f;
    }
    o.key_codes.assign(static_cast<std::size_t>(code_sets_) * kHeads, code);
    FOVEA_ASSIGN_OR_RETURN(PageSelector selector, PageSelector::create(o));
    selector_.emplace(std::move(selector));
    const std::size_t bytes = static_cast<std::size_t>(requests_) * kPagesEach * kRecordBytes;
    FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer random, bench_.random(bytes, 0xffff, 0));
    for (std::int32_t set = 0; set < code_sets_; ++set) {
      FOVEA_ASSIGN_OR_RETURN(const TensorView codes, selector_->statistics(set));
      FOVEA_RETURN_IF_ERROR(cuda::copy_on_device(bench_.device(), codes.data, random.data(), bytes, bench_.stream()));
    }
    return bench_.device().synchronize();  // before random's memory goes
  }
  TensorView ints(const cuda::DeviceBuffer& buffer, std::int64_t count) const {
    return on_device(cpu_tensor(buffer.data(), DType::kI32, count));
  }
  SelectStep step() const {
    SelectStep step;
    step.kv_lens = ints(lens_, requests_);
    step.page_table = on_device(cpu_tensor(entries_.data(), DType::kI32, requests_, kPagesEach));
    step.lists =
        on_device(cpu_tensor(entries_.as<std::int32_t>() + lists_at_, DType::kI32, requests_, kHeads, kListPages));
    step.list_tokens = ints(list_tokens_, requests_);
    return step;
  }
  template <typename T>
  Status upload(const std::vector<T>& from, cuda::DeviceBuffer& to) {
    const std::size_t bytes = from.size() * sizeof(T);
    if (to.size_bytes() < bytes) {
      FOVEA_ASSIGN_OR_RETURN(to, cuda::DeviceBuffer::create(bench_.device(), bytes));
    }
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(bench_.device(), to.data(), from.data(), bytes, bench_.stream()));
    return bench_.device().synchronize();
  }
  std::size_t token_bytes() const {
    return std::size_t{2} * kHeads * kDim * static_cast<std::size_t>(dtype_bits(kv_dtype_)) / 8;
  }
  std::size_t pool_bytes() const { return static_cast<std::size_t>(requests_) * kTokens * token_bytes() / 2; }
  TensorView on_device(TensorView view) const {
    view.device = DeviceKind::kCuda;
    view.device_index = bench_.device().index();
    return view;
  }
  TensorView rows(const cuda::DeviceBuffer& buffer) const {
    return on_device(cpu_tensor(buffer.data(), DType::kBF16, requests_, kHeads * kGroup, kDim));
  }

  const CudaBench& bench_;
  std::int32_t requests_;
  DType kv_dtype_;
  int code_sets_ = 1, kv_sets_ = 1;
  std::size_t lists_at_ = 0;
  std::vector<std::int32_t> kv_lens_;
  cuda::DeviceBuffer k_, v_, q_, out_, entries_, lens_, list_tokens_, scan_phases_;
  std::optional<PageSelector> selector_;
  std::optional<Attention> attention_;
};

Status measure(const CudaBench& bench, const CudaLimits& limits, std::int32_t requests, DType kv_dtype,
               BenchReport& report) {
  constexpr int kCalls = 96;
  const std::string name = fmt::format("32x8/B{}/S{}/{}", requests, kTokens, dtype_name(kv_dtype));
  const auto add = [&](const char* what, double us, std::optional<double> bytes) {
    if (bytes) *bytes = *bytes / limits.read_bytes_per_second * 1e6;
    report.add({"sparse", name, what, us, "us", bytes, "", std::nullopt, true});
  };
  SparseStep step(bench, requests, kv_dtype);
  FOVEA_RETURN_IF_ERROR(step.create());
  const double unit_bytes = static_cast<double>(requests) * static_cast<double>(kRecordBytes);

  // Scans that remember candidates (the same length again is a scan), one token before those that rescore them.
  FOVEA_RETURN_IF_ERROR(step.set_length(kTokens - 2));
  for (int set = 0; set < step.code_sets(); ++set) FOVEA_RETURN_IF_ERROR(step.select(set, true));
  FOVEA_ASSIGN_OR_RETURN(const double scan, bench.replay_us(kCalls, [&](int i) { return step.select(i, false); }));
  FOVEA_RETURN_IF_ERROR(step.set_length(kTokens - 1));
  add("selection", scan, unit_bytes * kPagesEach);
  FOVEA_ASSIGN_OR_RETURN(const double rescore, bench.replay_us(kCalls, [&](int i) { return step.select(i, false); }));
  add("rescoring", rescore, unit_bytes * (kCandidates + 1));
  FOVEA_RETURN_IF_ERROR(step.plan_selected());
  FOVEA_ASSIGN_OR_RETURN(const double attention, bench.replay_us(kCalls, [&](int i) { return step.attend(i); }));
  const double token_bytes = 2.0 * kHeads * kDim * dtype_bits(kv_dtype) / 8;
  const double read = static_cast<double>(requests) * kBudget * token_bytes;
  add("attention", attention, read);
  add("attention + selection/4 + rescoring*3/4", attention + scan / 4 + rescore * 3 / 4, std::nullopt);
  FOVEA_ASSIGN_OR_RETURN(const double together, bench.replay_us(kCalls, [&](int i) -> Status {
    FOVEA_RETURN_IF_ERROR(step.select(i, i % kInterval == 0));
    return step.attend(i);
  }));
  add("the same in one graph", together, std::nullopt);

  // Up to the budget: plan_selected() beside plan(), over the same lists.
  FOVEA_RETURN_IF_ERROR(step.set_length(kBudget));
  FOVEA_RETURN_IF_ERROR(step.renew());
  FOVEA_RETURN_IF_ERROR(step.plan_dense());
  FOVEA_ASSIGN_OR_RETURN(const double dense, bench.replay_us(kCalls, [&](int i) { return step.attend(i); }));
  FOVEA_RETURN_IF_ERROR(step.attend(0));
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::uint16_t> expected, step.output());
  FOVEA_RETURN_IF_ERROR(step.renew());
  FOVEA_RETURN_IF_ERROR(step.select(0, true));
  FOVEA_RETURN_IF_ERROR(step.plan_selected());
  FOVEA_ASSIGN_OR_RETURN(const double under, bench.replay_us(kCalls, [&](int i) { return step.attend(i); }));
  FOVEA_RETURN_IF_ERROR(step.attend(0));
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::uint16_t> output, step.output());
  add("under budget", under, read);
  add("under budget, by plan()", dense, read);
  if (output == expected) return ok_status();
  return make_status(StatusCode::kInternal, "{}: under budget the output is not that of plan(), bit by bit", name);
}

}  // namespace

Status bench_cuda_sparse(const CudaBench& bench, const CudaLimits& limits, BenchReport& report) {
  for (const std::int32_t requests : {1, 8, 16}) {
    for (const DType kv_dtype : {DType::kF8E4M3, DType::kBF16}) {
      FOVEA_RETURN_IF_ERROR(measure(bench, limits, requests, kv_dtype, report));
    }
  }
  return ok_status();
}

}  // namespace fovea::app
