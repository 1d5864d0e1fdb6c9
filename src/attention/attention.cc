// The public Attention: picks the implementation and checks what callers hand over.
#include "fovea/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/attention_checks.h"
#include "attention/cuda_attention.h"
#include "attention/paged_attention.h"
#include "base/status.h"
#include "core/plan/explain.h"

namespace fovea {

Status check_attention_options(const AttentionOptions& o) {
  if (o.page_tokens < 1 || o.page_tokens > 256) {
    return invalid_argument("page_tokens is {}, expected 1..256", o.page_tokens);
  }
  if (o.head_dim < 16 || o.head_dim > 256 || o.head_dim % 16 != 0) {
    return unsupported("head_dim is {}, expected a multiple of 16 up to 256", o.head_dim);
  }
  const bool integers = o.kv_dtype == DType::kI8 || o.kv_dtype == DType::kI4;
  if (o.kv_rotated && (!integers || !std::has_single_bit(static_cast<std::uint32_t>(o.head_dim)))) {
    return unsupported("kv_rotated with {} KV and head_dim {}; int8 and int4 are rotated, with powers of two",
                       dtype_name(o.kv_dtype), o.head_dim);
  }
  if (o.kv_token_scales && !integers && o.kv_dtype != DType::kF8E4M3) {
    return unsupported("kv_token_scales with {} KV, which has no scales", dtype_name(o.kv_dtype));
  }
  if (!std::isfinite(o.sm_scale) || !std::isfinite(o.softcap) || o.softcap < 0.0f || !std::isfinite(o.sigmoid_bias)) {
    return invalid_argument(
        "sm_scale is {}, softcap {} and sigmoid_bias {}; expected finite numbers and a softcap of 0 "
        "or more",
        o.sm_scale, o.softcap, o.sigmoid_bias);
  }
  struct Count {
    const char* name;
    std::int64_t value, most;
  };
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  for (const auto& [name, value, most] :
       {Count{"num_threads", o.num_threads, 4096}, Count{"num_workers", o.num_workers, kAny},
        Count{"max_page_entries", o.max_page_entries, std::int64_t{1} << 40},
        Count{"max_mask_bytes", o.max_mask_bytes, std::int64_t{1} << 40},
        Count{"max_cascade_levels", o.max_cascade_levels, 64}, Count{"max_selected", o.max_selected, kAny}}) {
    if (value < 0) return invalid_argument("{} is {}, expected 0 or more", name, value);
    if (value > most) return invalid_argument("{} is {}, expected {} at most", name, value, most);
  }
  return ok_status();
}

PlannerOptions planner_options(const AttentionConfig& config) {
  const AttentionOptions& o = config.options;
  PlannerOptions p;
  p.num_qo_heads = o.num_qo_heads;
  p.num_kv_heads = o.num_kv_heads;
  p.head_dim = o.head_dim;
  p.kv_element_bits = dtype_bits(o.kv_dtype);
  p.page_tokens = o.page_tokens;
  p.share_prefixes = o.share_prefixes;
  p.batch_invariant = o.batch_invariant;
  while (p.batch_invariant && p.invariant_chunk % o.page_tokens != 0) p.invariant_chunk += 512;
  if (config.limits.has_value()) p.limits = *config.limits;
  p.limits.max_requests = o.max_requests;
  p.limits.max_rows = o.max_rows;
  p.limits.max_pages_per_request = o.max_pages_per_request;
  if (config.limits.has_value()) return p;
  const std::int64_t rows = std::max(o.max_rows, 0);
  p.limits.max_block_rows =
      static_cast<std::int32_t>(std::min<std::int64_t>(o.max_cascade_levels * rows, std::int64_t{1} << 24));
  if (o.max_cascade_levels > 0) {
    p.limits.max_shared_rows =
        static_cast<std::int32_t>(std::min<std::int64_t>(o.max_cascade_levels * rows, std::int64_t{1} << 30));
  }
  if (o.max_selected > 0) {
    const std::int64_t most = std::int64_t{1} << 24;
    const std::int64_t lists = std::min<std::int64_t>(std::int64_t{o.max_selected} * o.num_kv_heads, most);
    p.limits.max_block_rows = static_cast<std::int32_t>(
        std::min<std::int64_t>(std::max<std::int64_t>(p.limits.max_block_rows, o.max_requests + lists), most));
    p.limits.max_covered_rows = static_cast<std::int32_t>(std::min<std::int64_t>(o.max_requests + lists, most));
  }
  p.limits.max_block_rows = std::max(p.limits.max_block_rows, o.max_block_rows);
  if (o.max_block_rows > 0) {  // as many lists of rows as KV heads
    const std::int64_t covered = std::min<std::int64_t>(rows * o.num_kv_heads, std::int64_t{1} << 24);
    p.limits.max_covered_rows = std::max(p.limits.max_covered_rows, static_cast<std::int32_t>(covered));
  }
  return p;
}

Attention::Attention(std::unique_ptr<PagedAttention> impl) : impl_(std::move(impl)) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

Result<Attention> Attention::create(const AttentionOptions& options) {
  FOVEA_RETURN_IF_ERROR(check_attention_options(options));
  FOVEA_ASSIGN_OR_RETURN(const DevicePlace place, parse_device(options.device));
  const bool on_cpu = place.kind == DeviceKind::kCpu;
  FOVEA_ASSIGN_OR_RETURN(
      std::unique_ptr<PagedAttention> impl,
      on_cpu ? create_cpu_paged_attention(options) : create_cuda_paged_attention({options, {}, {}}, place));
  return Attention(std::move(impl));
}

Status Attention::plan(const RequestBatch& batch, Stream stream) { return impl_->plan(batch, stream); }
Status Attention::plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) {
  return impl_->plan_cascade(num_rows, levels, stream);
}
Status Attention::plan_selected(const SelectedBatch& batch, Stream stream) {
  return impl_->plan_selected(batch, stream);
}
Status Attention::plan_ragged(const RaggedBatch& batch, Stream stream) { return impl_->plan_ragged(batch, stream); }
Status Attention::plan_blocks(const BlockSparseBatch& batch, Stream stream) {
  return impl_->plan_blocks(batch, stream);
}
Status Attention::grow(std::span<const std::int32_t> kv_lens, Stream stream) { return impl_->grow(kv_lens, stream); }
Status Attention::grow_on_device(const TensorView& kv_lens, Stream stream) {
  return impl_->grow_on_device(kv_lens, stream);
}
Status Attention::growth_status(Stream stream) const { return impl_->growth_status(stream); }
Status Attention::run(const TensorView& q, const PagedKv& kv, const TensorView& out, const TensorView& lse,
                      Stream stream, const RunValues& values) {
  const std::int64_t rows = impl_->num_rows();
  if (rows < 0) return invalid_argument("run() needs a plan; call plan() first");
  const AttentionOptions& o = impl_->options();
  const DevicePlace place = impl_->place();
  FOVEA_RETURN_IF_ERROR(check_rows("q", q, rows, o.num_qo_heads, o.head_dim, o.q_dtype, place));
  FOVEA_RETURN_IF_ERROR(check_rows("out", out, rows, o.num_qo_heads, o.head_dim, o.q_dtype, place));
  if (!is_empty(lse)) {
    FOVEA_RETURN_IF_ERROR(check_array("lse", lse, {rows, o.num_qo_heads}, DType::kF32, place));
  }
  // First, because what else a pool must have follows from its type.
  if (kv.k.data != nullptr && kv.k.dtype != o.kv_dtype) {
    return invalid_argument("k is {}, declared was {}", describe(kv.k), dtype_name(o.kv_dtype));
  }
  const std::int64_t tokens = impl_->contiguous_tokens();
  FOVEA_ASSIGN_OR_RETURN(const abi::KvPoolView pool,
                         tokens < 0 ? pool_view(kv, o.num_kv_heads, o.head_dim, o.page_tokens, place)
                                    : contiguous_view(kv, tokens, o.num_kv_heads, o.head_dim, o.page_tokens, place));
  FOVEA_RETURN_IF_ERROR(check_storage(o, kv, pool));
  FOVEA_RETURN_IF_ERROR(impl_->check_pages(pool.num_pages));
  return impl_->run(q, {&pool, 1}, out, lse, stream, values);
}
bool Attention::captured() const { return impl_->captured(); }
std::size_t Attention::workspace_bytes() const { return impl_->workspace_bytes(); }
const AttentionOptions& Attention::options() const { return impl_->options(); }
std::string Attention::explain() const {
  return fmt::format("{:<26}{}\n{}", "kernel", impl_->kernel_and_reason(), explain_plan(impl_->planner()));
}

AttentionStats Attention::stats() const {
  const Planner& planner = impl_->planner();
  const PlanStats plan = impl_->stats();
  AttentionStats stats;
  stats.kv_bytes = plan.kv_bytes;
  stats.kv_bytes_unshared = plan.kv_bytes_unshared;
  stats.partial_bytes = plan.partial_bytes;
  stats.plan_bytes = impl_->plan_bytes();
  stats.num_workers = static_cast<std::uint32_t>(planner.options().num_workers);
  stats.num_items = planner.view().header->num_items;
  // Queues that workers claim one after another are shorter than a worker's share: the claiming evens them out.
  if (plan.total_cost > 0) {
    const double share = static_cast<double>(plan.total_cost) / stats.num_workers;
    stats.imbalance = std::max(1.0, static_cast<double>(plan.max_worker_cost) / share);
  }
  return stats;
}

}  // namespace fovea
