// PagedAttention on the CPU: plans with core/plan, runs with cpu/attention. f16 queries go through fp32, which is what
// the CPU computes in. Append and merge of the public API stand here too.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "attention/attention_checks.h"
#include "attention/cpu_paged_ops.h"
#include "attention/paged_attention.h"
#include "base/half.h"
#include "base/status.h"
#include "cpu/append.h"
#include "cpu/attention/attention.h"
#include "cpu/attention/variant_compiler.h"
#include "cpu/merge_states.h"
#include "cpu/simd.h"

namespace fovea {
namespace {

class CpuPagedAttention : public PagedAttention {
 public:
  CpuPagedAttention(const AttentionOptions& options, VariantChoice variant, const cpu::AttentionKernels& kernels,
                    Planner planner, std::shared_ptr<ThreadPool> threads)
      : PagedAttention(options, DevicePlace{}),
        variant_(std::move(variant)),
        made_(variant_.args.shipped()),
        kernels_(kernels),
        planner_(std::move(planner)),
        translator_(options, false),
        threads_(std::move(threads)) {}

  Status plan(const RequestBatch& batch, Stream) override {
    planned_ = false;
    if (batch.page_indices_device != DeviceKind::kCpu) return invalid_argument("page_indices must be on the CPU");
    FOVEA_ASSIGN_OR_RETURN(const AttentionBatch translated, translator_.requests(batch));
    return done(planner_.plan(translated));
  }
  Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream) override {
    planned_ = false;
    for (const CascadeLevel& level : levels) {
      if (level.page_indices_device != DeviceKind::kCpu) return invalid_argument("page_indices must be on the CPU");
    }
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.cascade(num_rows, levels));
    return done(planner_.plan_block_rows(translated));
  }
  Status plan_selected(const SelectedBatch& batch, Stream) override {
    planned_ = false;
    SelectedBatch now = batch;
    now.list_tokens = nullptr;  // nothing changes lists behind a plan here
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.selected(now));
    return done(planner_.plan_block_rows(translated));
  }
  Status plan_ragged(const RaggedBatch& batch, Stream) override {
    planned_ = false;
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.ragged(batch));
    return done(planner_.plan_block_rows(translated));
  }
  Status plan_blocks(const BlockSparseBatch& batch, Stream) override {
    planned_ = false;
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.blocks(batch));
    return done(planner_.plan_block_rows(translated));
  }
  Status plan_block_rows(const BlockRowBatch& batch, Stream) override {
    planned_ = false;
    translator_.given();
    return done(planner_.plan_block_rows(batch));
  }
  Status grow(std::span<const std::int32_t> kv_lens, Stream) override {
    if (!planned_) return invalid_argument("grow() needs a plan; call plan() first");
    FOVEA_RETURN_IF_ERROR(translator_.grow(kv_lens, planner_).status());
    return planner_.grow(kv_lens.data());
  }

  Status grow_on_device(const TensorView& kv_lens, Stream stream) override {
    FOVEA_RETURN_IF_ERROR(check_growth(options_, planned_, translator_));
    FOVEA_RETURN_IF_ERROR(check_array("kv_lens", kv_lens, {translator_.num_requests()}, DType::kI32, place_));
    return grow({static_cast<const std::int32_t*>(kv_lens.data), static_cast<std::size_t>(translator_.num_requests())},
                stream);
  }

  Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, const TensorView& lse,
             Stream, const RunValues& values) override {
    if (!planned_) return invalid_argument("run() needs a plan; call plan() first");
    FOVEA_RETURN_IF_ERROR(set_run_values(options_, made_, values, variant_.args.shipped()));
    if (num_rows() == 0) return ok_status();  // whose tensors may have any strides
    return options_.q_dtype == DType::kF16 ? run_f16(q, pools, out, static_cast<float*>(lse.data))
                                           : run_wide(q, pools, out, static_cast<float*>(lse.data));
  }

  Result<bool> run_part(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out,
                        Stream stream, const Pause& pause, bool goes_on) override {
    if (!planned_ || num_rows() == 0 || options_.q_dtype == DType::kF16) {
      return PagedAttention::run_part(q, pools, out, stream, pause, goes_on);
    }
    FOVEA_RETURN_IF_ERROR(set_run_values(options_, made_, {}, variant_.args.shipped()));
    return cpu::run_attention_part(planner_.view(), variant_.args.shipped(), kernels_, q, pools.data(),
                                   static_cast<int>(pools.size()), out, nullptr, workspace_, *threads_, pause, goes_on);
  }

  std::int64_t num_rows() const override { return planned_ ? std::int64_t{planner_.view().header->num_rows} : -1; }
  std::int64_t contiguous_tokens() const override { return translator_.contiguous_tokens(); }
  Status check_pages(std::int64_t num_pages) const override { return translator_.check_pages(num_pages); }
  std::size_t workspace_bytes() const override {
    const auto row_bytes = (static_cast<std::size_t>(options_.head_dim) + 1) * sizeof(float);
    return planner_.max_partial_rows() * row_bytes + widened_.capacity() * sizeof(float);
  }
  std::size_t plan_bytes() const override { return 0; }
  const Planner& planner() const override { return planner_; }
  std::string kernel_and_reason() const override {
    return fmt::format("cpu ({}): it runs all plans", cpu::simd_target());
  }

  Status reserve() {
    const PlannerOptions& p = planner_.options();
    return workspace_.reserve(planner_.max_partial_rows(), p.head_dim, p.tile_rows, threads_->size());
  }

 private:
  Status done(Status status) {
    planned_ = status.ok();
    return status;
  }

  // Of f32 or bf16 queries.
  Status run_wide(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, float* lse) {
    return cpu::run_attention(planner_.view(), variant_.args.shipped(), kernels_, q, pools.data(),
                              static_cast<int>(pools.size()), out, lse, workspace_, *threads_);
  }
  Status run_f16(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, float* lse) {
    const std::int64_t rows = num_rows();
    const std::int64_t heads = options_.num_qo_heads;
    const std::int64_t dim = options_.head_dim;
    const std::int64_t size = rows * heads * dim;
    widened_.resize(static_cast<std::size_t>(2 * size));
    float* const q_wide = widened_.data();
    float* const out_wide = q_wide + size;
    for_each_head(
        rows,
        [&](std::int64_t row, std::int64_t head, float* wide) {
          const auto* from = static_cast<const std::uint16_t*>(q.data) + row * q.strides[0] + head * q.strides[1];
          for (std::int64_t d = 0; d < dim; ++d) wide[d] = f16_to_float(from[d]);
        },
        q_wide);
    FOVEA_RETURN_IF_ERROR(run_wide(cpu_tensor(q_wide, DType::kF32, rows, heads, dim), pools,
                                   cpu_tensor(out_wide, DType::kF32, rows, heads, dim), lse));
    for_each_head(
        rows,
        [&](std::int64_t row, std::int64_t head, const float* wide) {
          auto* to = static_cast<std::uint16_t*>(out.data) + row * out.strides[0] + head * out.strides[1];
          for (std::int64_t d = 0; d < dim; ++d) to[d] = float_to_f16(wide[d]);
        },
        out_wide);
    return ok_status();
  }
  // f(row, head, elements of that head in a contiguous [rows, heads, dim]).
  template <typename F>
  void for_each_head(std::int64_t rows, F f, float* wide) {
    const std::int64_t heads = options_.num_qo_heads;
    threads_->parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * heads; i < end * heads; ++i) f(i / heads, i % heads, wide + i * options_.head_dim);
    });
  }

  VariantChoice variant_;
  const AttentionParams made_;  // before a run's values
  cpu::AttentionKernels kernels_;
  Planner planner_;
  BatchTranslator translator_;
  std::shared_ptr<ThreadPool> threads_;
  cpu::AttentionWorkspace workspace_;
  std::vector<float> widened_;
  bool planned_ = false;
};

// No local static: while one is made, a fork would leave its child waiting for the thread that makes it.
struct ProcessPool {
  std::atomic<ThreadPool*> made{nullptr};
  ~ProcessPool() { delete made.load(); }
};
constinit ProcessPool process_pool;

bool cpu_type(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

ThreadPool& process_threads() {
  ThreadPool* kept = process_pool.made.load(std::memory_order_acquire);
  if (kept != nullptr) return *kept;
  auto made = std::make_unique<ThreadPool>();
  if (process_pool.made.compare_exchange_strong(kept, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *kept;
}

Result<std::unique_ptr<PagedAttention>> create_cpu_paged_attention(const AttentionConfig& config,
                                                                   AttentionProducts products,
                                                                   std::shared_ptr<ThreadPool> threads) {
  const AttentionOptions& options = config.options;
  FOVEA_RETURN_IF_ERROR(check_attention_options(options));
  const bool quantized =
      options.kv_dtype == DType::kF8E4M3 || options.kv_dtype == DType::kI8 || options.kv_dtype == DType::kI4;
  if (!cpu_type(options.q_dtype) || (!cpu_type(options.kv_dtype) && !quantized)) {
    return unsupported(
        "q_dtype is {} and kv_dtype {}; the CPU takes queries of f32, f16 and bf16, and KV of these, "
        "fp8_e4m3, int8 and int4",
        dtype_name(options.q_dtype), dtype_name(options.kv_dtype));
  }
  FOVEA_ASSIGN_OR_RETURN(VariantChoice variant, choose_variant(options));
  variant.args.shipped().products = products;
  cpu::AttentionKernels kernels = cpu::attention_kernels(variant.id);
  if (!variant.spec.source.empty()) {
    FOVEA_ASSIGN_OR_RETURN(kernels, cpu::compile_variant(variant.spec));
  }
  PlannerOptions p = planner_options(config);
  p.num_workers = options.num_workers > 0 ? options.num_workers : threads->size();
  FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(p));
  auto impl =
      std::make_unique<CpuPagedAttention>(options, std::move(variant), kernels, std::move(planner), std::move(threads));
  FOVEA_RETURN_IF_ERROR(impl->reserve());
  return std::unique_ptr<PagedAttention>(std::move(impl));
}

Result<std::unique_ptr<PagedAttention>> create_cpu_paged_attention(const AttentionOptions& options) {
  const bool bf16 = options.q_dtype == DType::kBF16 && !options.batch_invariant;
  std::shared_ptr<ThreadPool> threads(std::shared_ptr<ThreadPool>(), &process_threads());
  if (options.num_threads > 0) threads = std::make_shared<ThreadPool>(options.num_threads);
  return create_cpu_paged_attention({options, {}, {}}, bf16 ? AttentionProducts::kBF16 : AttentionProducts::kF32,
                                    std::move(threads));
}

Result<std::vector<std::int32_t>> slots_of(const AppendPlaces& places, std::int64_t rows, std::int32_t page_tokens,
                                           std::int32_t num_pages) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(rows));
  if (!is_empty(places.slots)) {
    std::copy_n(static_cast<const std::int32_t*>(places.slots.data), rows, slots.begin());
    const auto bad = std::find_if(slots.begin(), slots.end(),
                                  [&](std::int32_t s) { return s >= 0 && s / page_tokens >= num_pages; });
    if (bad == slots.end()) return slots;
    return out_of_range("slot {} of row {} lies outside of the pool's {} pages of {}", *bad, bad - slots.begin(),
                        num_pages, page_tokens);
  }
  const auto* requests = static_cast<const std::int32_t*>(places.batch_indices.data);
  const auto* positions = static_cast<const std::int32_t*>(places.positions.data);
  const auto* indices = static_cast<const std::int32_t*>(places.page_indices.data);
  const auto* indptr = static_cast<const std::int32_t*>(places.page_indptr.data);
  const std::int64_t num_requests = places.page_indptr.shape[0] - 1;
  const std::int64_t num_indices = places.page_indices.shape[0];
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t request = requests[i];
    if (request < 0 || request >= num_requests || positions[i] < 0) {
      return out_of_range(
          "row {} is position {} of request {}, expected a request in 0..{} and a position of 0 or more", i,
          positions[i], request, num_requests - 1);
    }
    const std::int64_t entry = std::int64_t{indptr[request]} + positions[i] / page_tokens;
    if (entry < 0 || entry >= std::min<std::int64_t>(indptr[request + 1], num_indices)) {
      return out_of_range("position {} of row {} lies beyond the pages of request {}", positions[i], i, request);
    }
    if (indices[entry] < 0 || indices[entry] >= num_pages) {
      return out_of_range("page {} of request {} lies outside of the pool's {} pages", indices[entry], request,
                          num_pages);
    }
    const std::int64_t slot = std::int64_t{indices[entry]} * page_tokens + positions[i] % page_tokens;
    if (slot > INT32_MAX) return out_of_range("slot {} does not fit 32 bits", slot);
    slots[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(slot);
  }
  return slots;
}

Status cpu_append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places,
                           const abi::KvPoolView& pool) {
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> slots,
                         slots_of(places, k.shape[0], pool.page_tokens, pool.num_pages));
  return cpu::append_kv(k, v, slots.data(), pool, process_threads());
}

Status cpu_merge_states(const MergeStates& merge) {
  cpu::merge_states(merge, process_threads());
  return ok_status();
}

}  // namespace fovea
