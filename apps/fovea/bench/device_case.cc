// Buffers, runs and timing of bench/device_case.h.
#include "bench/device_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/half.h"
#include "base/status.h"

namespace fovea::app {
namespace {

// KV that the calls of a graph go through, so that none finds its own in the L2.
constexpr double kRotatedBytes = 400e6;
constexpr double kGraphUs = 600.0;  // a replay costs some microseconds of its own
constexpr int kMostCalls = 400;

}  // namespace

AttentionOptions options_of(const MeasuredCase& c, const PagedBatch& batch) {
  AttentionOptions o = c.options();
  o.max_requests = batch.num_requests();
  o.max_rows = std::max(batch.num_rows(), 1);
  o.max_pages_per_request = batch.stride;
  // A request without pages may begin inside of a unit; lists of blocks are short of the whole.
  if (c.contiguous) ++o.max_pages_per_request;
  if (!c.blocks.empty()) {
    o.max_block_rows = static_cast<std::int32_t>(c.blocks.indptr.size());
    o.max_page_entries = std::int64_t{o.max_block_rows} * o.max_pages_per_request;
  }
  // Lists are packed, with some room each.
  for (const std::int32_t tokens : batch.kv_lens) o.max_page_entries += tokens / batch.page_tokens + 16;
  return o;
}

Result<DeviceCase> DeviceCase::create(const CudaBench& bench, const MeasuredCase& c, bool heads_first) {
  DeviceCase d(bench, c, heads_first);
  d.batch_ = c.batch(1);
  d.sets_ = static_cast<int>(std::clamp(std::ceil(kRotatedBytes / std::max(c.kv_bytes(), 1.0)), 1.0, 400.0));
  const double most_sets = 8e9 / static_cast<double>(d.pool_bytes());  // of a window all of a pool is there
  d.sets_ = std::clamp(d.sets_, 1, std::max(1, static_cast<int>(most_sets)));
  const bool fp8 = c.kv_dtype == DType::kF8E4M3;
  const bool integers = c.kv_dtype == DType::kI8 || c.kv_dtype == DType::kI4;
  const std::size_t bytes = d.pool_bytes() * static_cast<std::size_t>(d.sets_);
  // Both signs; magnitudes from 0.25 up to 1 (e4m3: up to 0.47).
  const std::uint16_t half = c.q_dtype == DType::kF16 ? 0x3400 : 0x3e80;
  const std::uint16_t keep = integers ? 0xffff : fp8 ? 0x8f8f : 0x80ff, set = integers ? 0 : fp8 ? 0x2828 : half;
  FOVEA_ASSIGN_OR_RETURN(d.k_, bench.random(bytes, keep, set));
  FOVEA_ASSIGN_OR_RETURN(d.v_, bench.random(bytes, keep, set));
  if (integers) {  // scales and zeros of about 1 / 500
    FOVEA_ASSIGN_OR_RETURN(d.scales_,
                           bench.random(d.scale_bytes() * static_cast<std::size_t>(d.sets_), 0x00f8, 0x1800));
  }
  FOVEA_ASSIGN_OR_RETURN(d.q_, bench.random(d.row_bytes(), 0x80ff, half));
  FOVEA_ASSIGN_OR_RETURN(d.out_, bench.random(d.row_bytes(), 0, 0x7fff));  // NaN
  AttentionOptions o = options_of(c, d.batch_);
  o.device = fmt::format("cuda:{}", bench.device().index());
  if (c.sinks) {
    const std::size_t sink_bytes = static_cast<std::size_t>(c.qo_heads) * sizeof(float);
    FOVEA_ASSIGN_OR_RETURN(d.sinks_, bench.random(sink_bytes, 0x80ff, 0x3e80));
    o.sinks = d.on_device(cpu_tensor(d.sinks_.data(), DType::kF32, c.qo_heads));
  }
  FOVEA_RETURN_IF_ERROR(d.use(o));
  return d;
}

Status DeviceCase::use(AttentionOptions options) {
  FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(options));
  attention_.emplace(std::move(attention));
  return plan();
}

Status DeviceCase::plan() {
  if (!case_.blocks.empty()) {
    BlockSparseBatch batch;
    batch.num_rows = batch_.num_rows();
    batch.num_tokens = case_.kv_lens[0];
    batch.block_rows = case_.blocks.rows;
    batch.block_tokens = case_.blocks.tokens;
    batch.indptr = case_.blocks.indptr.data();
    batch.indices = case_.blocks.indices.data();
    return attention_->plan_blocks(batch, {bench_.stream()});
  }
  if (case_.contiguous) {
    RaggedBatch batch;
    batch.num_requests = batch_.num_requests();
    batch.q_lens = batch_.q_lens.data();
    batch.kv_lens = batch_.kv_lens.data();
    std::vector<std::int32_t> begins(1, 0);
    for (const std::int32_t tokens : batch_.kv_lens) begins.push_back(begins.back() + tokens);
    batch.kv_begins = begins.data();
    batch.mask = static_cast<AttentionMask>(batch_.mask);
    batch.window_left = batch_.window_left;
    return attention_->plan_ragged(batch, {bench_.stream()});
  }
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

Status DeviceCase::grow() {
  for (std::int32_t& tokens : batch_.kv_lens) ++tokens;
  return attention_->grow(batch_.kv_lens, {bench_.stream()});
}

Result<double> DeviceCase::reschedule_us() {
  const cuda::ScopedContext context(bench_.device());
  const std::size_t bytes = batch_.kv_lens.size() * sizeof(std::int32_t);
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer lens, cuda::DeviceBuffer::create(bench_.device(), bytes));
  FOVEA_RETURN_IF_ERROR(
      cuda::copy_to_device(bench_.device(), lens.data(), batch_.kv_lens.data(), bytes, bench_.stream()));
  const TensorView view = on_device(cpu_tensor(lens.data(), DType::kI32, batch_.num_requests()));
  return bench_.replay_us(20, [&](int) { return attention_->grow_on_device(view, {bench_.stream()}); });
}

void DeviceCase::shorten(std::int32_t tokens) {
  for (std::int32_t& n : batch_.kv_lens) n -= tokens;
}

Status DeviceCase::keep_lists_on_device() {
  const cuda::ScopedContext context(bench_.device());
  const std::size_t bytes = batch_.page_table.size() * 4;
  FOVEA_ASSIGN_OR_RETURN(pages_, cuda::DeviceBuffer::create(bench_.device(), bytes));
  return cuda::copy_to_device(bench_.device(), pages_.data(), batch_.page_table.data(), bytes, bench_.stream());
}

Status DeviceCase::run(int set) {
  const std::size_t at = pool_bytes() * static_cast<std::size_t>(set);
  PagedKv kv;
  kv.layout = heads_first_ ? KvLayout::kHND : KvLayout::kNHD;
  kv.k = pool(k_.as<std::byte>() + at);
  kv.v = pool(v_.as<std::byte>() + at);
  if (scales_.data() != nullptr) {
    const void* scales = scales_.as<std::byte>() + scale_bytes() * static_cast<std::size_t>(set);
    kv.k_scale = kv.v_scale =
        on_device(cpu_tensor(scales, DType::kF16, batch_.num_pages, case_.kv_heads, case_.page_tokens, 2));
    kv.v_scale.data = const_cast<std::byte*>(static_cast<const std::byte*>(scales) + scale_bytes() / 2);
  }
  return attention_->run(rows(q_), kv, rows(out_), {}, {bench_.stream()});
}

Status DeviceCase::append(const cuda::DeviceBuffer& slots) {
  PagedKv kv;
  kv.layout = heads_first_ ? KvLayout::kHND : KvLayout::kNHD;
  kv.k = pool(k_.data());
  kv.v = pool(v_.data());
  const TensorView rows =
      on_device(cpu_tensor(q_.data(), case_.q_dtype, batch_.num_rows(), case_.kv_heads, case_.head_dim));
  AppendPlaces places;
  places.slots = on_device(cpu_tensor(slots.data(), DType::kI32, batch_.num_rows()));
  return append_paged_kv(rows, rows, places, kv, {bench_.stream()});
}

int DeviceCase::calls() const {
  const double guess = std::max({case_.kv_bytes() / 4e6, case_.flops() / 2e8, 5.0});
  return std::clamp(static_cast<int>(kGraphUs / guess), sets_, std::max(sets_, kMostCalls));
}

Result<double> DeviceCase::time_us() {
  FOVEA_ASSIGN_OR_RETURN(const double us, bench_.replay_us(calls(), [&](int call) { return run(call % sets_); }));
  FOVEA_RETURN_IF_ERROR(check_output());
  return us;
}

Result<CudaBench::BurstAndSoaked> DeviceCase::burst_and_soaked_us() {
  FOVEA_ASSIGN_OR_RETURN(const CudaBench::BurstAndSoaked times,
                         bench_.burst_and_soaked_us(calls(), [&](int call) { return run(call % sets_); }));
  FOVEA_RETURN_IF_ERROR(check_output());
  return times;
}

std::size_t DeviceCase::pool_bytes() const {
  const std::int64_t elements = std::int64_t{batch_.num_pages} * case_.page_tokens * case_.kv_heads * case_.head_dim;
  return static_cast<std::size_t>(elements * dtype_bits(case_.kv_dtype) / 8);
}

std::size_t DeviceCase::scale_bytes() const {
  return std::size_t{2} * static_cast<std::size_t>(batch_.num_pages) *
         static_cast<std::size_t>(case_.page_tokens * case_.kv_heads) * 4;
}

std::size_t DeviceCase::row_bytes() const {
  return static_cast<std::size_t>(batch_.num_rows()) * static_cast<std::size_t>(case_.qo_heads * case_.head_dim) * 2;
}

TensorView DeviceCase::on_device(TensorView view) const {
  view.device = DeviceKind::kCuda;
  view.device_index = bench_.device().index();
  return view;
}

TensorView DeviceCase::pool(const void* data) const {
  if (case_.contiguous) {
    const std::int64_t tokens = batch_.num_tokens();
    return on_device(heads_first_ ? cpu_tensor(data, case_.kv_dtype, case_.kv_heads, tokens, case_.head_dim)
                                  : cpu_tensor(data, case_.kv_dtype, tokens, case_.kv_heads, case_.head_dim));
  }
  const std::int32_t first = heads_first_ ? case_.kv_heads : case_.page_tokens;
  const std::int32_t second = heads_first_ ? case_.page_tokens : case_.kv_heads;
  return on_device(cpu_tensor(data, case_.kv_dtype, batch_.num_pages, first, second, case_.head_dim));
}

TensorView DeviceCase::rows(const cuda::DeviceBuffer& buffer) const {
  return on_device(cpu_tensor(buffer.data(), case_.q_dtype, batch_.num_rows(), case_.qo_heads, case_.head_dim));
}

// Averages of values below 1 are below 1. Tests judge results; this catches a benchmark of nothing.
Status DeviceCase::check_output() const {
  const cuda::ScopedContext context(bench_.device());
  std::vector<std::uint16_t> out(row_bytes() / 2);
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(bench_.device(), out.data(), out_.data(), row_bytes(), bench_.stream()));
  FOVEA_RETURN_IF_ERROR(bench_.device().synchronize());
  for (const std::uint16_t bits : out) {
    const float value = case_.q_dtype == DType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
    if (!(std::abs(value) <= 1.0f)) {
      return make_status(StatusCode::kInternal, "{}: an output is {}, expected an average of values below 1",
                         case_.id(), value);
    }
  }
  return ok_status();
}

}  // namespace fovea::app
