// Plans of a batch go to the executor that is best for it (cuda_executor.h, plan_chooser.h), and to the device by a
// copy in the stream of the runs; grown lengths of page lists on the device are cut there (cuda_reschedule.h).
#include "attention/cuda_attention.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "abi/attention_args.h"
#include "attention/cuda_captured.h"
#include "attention/cuda_executor.h"
#include "attention/cuda_kernels.h"
#include "attention/cuda_reschedule.h"
#include "base/check.h"
#include "base/status.h"
#include "core/plan/device_plan.h"
#include "cuda/copy_slot.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/stream.h"

namespace fovea {
namespace {

constexpr std::size_t kSpanCounterWords = 32;

// Pools whose tensor maps are kept; the layers of a model, some times over.
constexpr std::size_t kMostPools = 1024;

// By fields: the record has bytes between them.
bool same_pool(const abi::KvPoolView& a, const abi::KvPoolView& b) {
  const auto all = [](const abi::KvPoolView& p) {
    return std::tie(p.k, p.v, p.page_stride, p.token_stride, p.head_stride, p.num_pages, p.page_tokens, p.entry_tokens,
                    p.entries_per_page, p.dtype, p.granularity, p.rotated, p.k_scale, p.v_scale, p.scale_page_stride,
                    p.scale_head_stride);
  };
  return all(a) == all(b);
}

class CudaPagedAttention : public PagedAttention {
 public:
  // executors: that for all plans first.
  CudaPagedAttention(const AttentionConfig& config, std::size_t pool, DevicePlace place, cuda::Device device,
                     CudaExecutors executors)
      : PagedAttention(config.options, place),
        pool_index_(pool),
        num_pools_(std::max<std::size_t>(config.pools.size(), 1)),
        device_(std::move(device)),
        executors_(std::move(executors.all)),
        active_(executors_.data()),
        chooser_(config.options, std::move(executors.menu)),
        translator_(config.options, true),
        graphs_by_kind_(config.graphs_by_kind),
        captured_(config.options.graphs_by_rows) {}

  Status init(const VariantChoice& variant);

  Status plan(const RequestBatch& batch, Stream stream) override;
  Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) override;
  Status plan_selected(const SelectedBatch& batch, Stream stream) override;
  Status plan_ragged(const RaggedBatch& batch, Stream stream) override {
    return plan_given([&] { return translator_.ragged(batch); }, stream);
  }
  Status plan_blocks(const BlockSparseBatch& batch, Stream stream) override {
    return plan_given([&] { return translator_.blocks(batch); }, stream);
  }
  Status grow(std::span<const std::int32_t> kv_lens, Stream stream) override;
  Status grow_on_device(const TensorView& kv_lens, Stream stream) override;
  Status growth_status(Stream stream) const override;
  Status plan_block_rows(const BlockRowBatch& batch, Stream stream) override {
    return plan_given([&] { return translator_.block_rows(batch, pool_index_, num_pools_); }, stream);
  }
  Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, const TensorView& lse,
             Stream stream, const RunValues& values) override;
  bool captured() const override { return !captured_.empty(); }
  std::uint64_t run_kind() const override {
    return static_cast<std::uint64_t>(active_ - executors_.data()) * 2 + (runs_shared() ? 1 : 0);
  }

  std::int64_t num_rows() const override {
    return planned_ ? std::int64_t{active_->planner.view().header->num_rows} : -1;
  }
  std::int64_t contiguous_tokens() const override { return translator_.contiguous_tokens(); }
  Status check_pages(std::int64_t num_pages) const override { return translator_.check_pages(num_pages); }
  std::size_t workspace_bytes() const override {
    return plan_.size_bytes() + entries_.size_bytes() + mask_.size_bytes() + partial_out_.size_bytes() +
           partial_lse_.size_bytes() + shared_out_.size_bytes() + shared_lse_.size_bytes() + counters_.size_bytes() +
           reschedule_.scratch_bytes();
  }
  std::size_t plan_bytes() const override { return plan_bytes_; }
  std::string kernel_and_reason() const override { return chooser_.explain(); }
  // Where the device cut again by itself, the host follows when somebody asks.
  const Planner& planner() const override {
    if (planner_behind_) planner_behind_ = !active_->planner.grow(kv_lens_.data()).ok();
    return active_->planner;
  }

 private:
  // Tensor maps of a pool, those of every executor.
  struct PoolMaps {
    abi::KvPoolView pool;
    std::vector<KvMaps> maps;
  };

  Status plan_batch(const AttentionBatch& batch);
  Status take_choice(const Status& planned, std::uint32_t rows);
  Status plan_rows(const BlockRowBatch& batch, bool selected);
  template <typename Make>
  Status make_plan(Stream stream, Make make);
  template <typename Translate>
  Status plan_given(Translate translate, Stream stream);
  bool reads_once(const BlockRowBatch& batch);
  Status reschedule_for(std::span<const std::int32_t> kv_lens, Stream stream);
  Status set_page_lists(const std::int32_t* entries, const std::int32_t* list_tokens = nullptr);
  Status check_not_capturing(Stream stream) const;
  Status upload(std::span<const std::int32_t> entries, std::span<const std::uint8_t> mask, Stream stream);
  // Whether the plan goes to the kernel for shared runs.
  bool runs_shared() const {
    return planned_ && (active_->planner.view().header->flags & abi::kPlanShares) != 0 && active_->shared.has_value();
  }
  Status set_pool(const abi::KvPoolView& pool);
  Result<PoolMaps> make_maps(const abi::KvPoolView& pool) const;
  Status check_pool(const abi::KvPoolView& pool) const;

  std::size_t pool_index_;  // of BlockRow::pool, and of num_pools_
  std::size_t num_pools_;
  cuda::Device device_;
  std::vector<CudaExecutor> executors_;
  CudaExecutor* active_;  // whose plan it is
  PlanChooser chooser_;
  std::vector<std::pair<tune::PlanKernel, Planner*>> planners_;  // of the executors
  mutable bool planner_behind_ = false;
  BatchTranslator translator_;
  CudaReschedule reschedule_;  // of all executors
  bool graphs_by_kind_;
  CapturedRuns captured_;
  // Fixed addresses for the life of the object, so that a captured run serves every later plan.
  cuda::DeviceBuffer plan_, entries_, mask_, partial_out_, partial_lse_, counters_;
  cuda::DeviceBuffer shared_out_, shared_lse_;
  cuda::CopySlot staging_[2];  // plans are copied from one after the other
  int next_staging_ = 0;
  std::size_t max_plan_bytes_ = 0;
  std::size_t plan_bytes_ = 0;

  abi::AttentionArgs args_{};
  AttentionParams made_params_;                      // of the variant, before a run's values
  std::unordered_map<const void*, PoolMaps> pools_;  // by the address of K: the layers of a model alternate
  PoolMaps* pool_ = nullptr;                         // of the last run
  bool can_reschedule_ = false;
  std::int64_t most_tokens_ = 0;       // of a request, by its page list; known where can_reschedule_
  std::vector<std::int32_t> kv_lens_;  // of the last plan() or grow()
  bool lists_on_device_ = false;
  bool lens_known_ = false;   // false after grow_on_device(),
  bool graph_grows_ = false;  // and whenever a graph captured it: a replay may have come in between
  std::vector<bool> pairs_read_;
  const std::int32_t* captured_lists_ = nullptr;  // page lists of runs that were captured in a graph
  bool planned_ = false;
  bool reschedule_ahead_ = false;  // a kernel that writes the plan was launched behind the last run
};

Status CudaPagedAttention::init(const VariantChoice& variant) {
  const AttentionOptions& o = options_;
  const std::int64_t declared = std::int64_t{o.max_requests} * (std::int64_t{o.max_pages_per_request} + 8);
  const auto max_entries = static_cast<std::size_t>(o.max_page_entries > 0 ? o.max_page_entries : declared);
  const auto mask_bytes = static_cast<std::size_t>(o.max_mask_bytes);
  std::size_t partial_rows = 0, shared_rows = 0, merges = 0;
  for (const CudaExecutor& e : executors_) {
    const std::size_t rows = e.planner.max_partial_rows();
    const bool prefill = e.kind == tune::PlanKernel::kPrefill;
    if (!prefill) partial_rows = std::max(partial_rows, rows);
    if (prefill || e.shared.has_value()) shared_rows = std::max(shared_rows, rows);
    merges = std::max<std::size_t>(merges, max_device_plan_merges(e.planner));
    max_plan_bytes_ =
        std::max(max_plan_bytes_, max_device_plan_bytes(e.planner, o.device_growth, worker_starts(e.kind)));
  }
  max_plan_bytes_ = (max_plan_bytes_ + 255) / 256 * 256;
  const auto make = [&](cuda::DeviceBuffer& buffer, std::size_t bytes, bool zeroed) -> Status {
    FOVEA_ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::create(device_, bytes, zeroed));
    return ok_status();
  };
  FOVEA_RETURN_IF_ERROR(make(plan_, max_plan_bytes_, true));
  FOVEA_RETURN_IF_ERROR(make(entries_, max_entries * sizeof(std::int32_t), false));
  FOVEA_RETURN_IF_ERROR(make(mask_, mask_bytes, false));
  const auto pending = static_cast<unsigned char>(abi::kPartPending & 0xff);
  const std::size_t row_bytes = static_cast<std::size_t>(o.head_dim) * sizeof(float);
  FOVEA_ASSIGN_OR_RETURN(partial_out_, cuda::DeviceBuffer::filled(device_, partial_rows * row_bytes, pending));
  FOVEA_ASSIGN_OR_RETURN(partial_lse_, cuda::DeviceBuffer::filled(device_, partial_rows * sizeof(float), pending));
  FOVEA_RETURN_IF_ERROR(make(shared_out_, shared_rows * row_bytes, false));
  FOVEA_RETURN_IF_ERROR(make(shared_lse_, shared_rows * sizeof(float), false));
  // The counter that spans are claimed by, on a cache line of its own, then those of the merges.
  const auto group = static_cast<std::size_t>(o.num_qo_heads / o.num_kv_heads);
  const std::size_t counters = kSpanCounterWords + merges * (1 + group) + shared_rows;
  FOVEA_RETURN_IF_ERROR(make(counters_, counters * sizeof(std::uint32_t), true));
  for (cuda::CopySlot& slot : staging_) {
    const std::size_t bytes = max_plan_bytes_ + max_entries * sizeof(std::int32_t) + mask_bytes;
    FOVEA_ASSIGN_OR_RETURN(slot, cuda::CopySlot::create(device_, bytes));
  }

  if (o.device_growth && !o.batch_invariant) {
    std::size_t scratch = 0;
    for (const CudaExecutor& e : executors_) scratch = std::max(scratch, max_reschedule_scratch_bytes(e.planner));
    FOVEA_ASSIGN_OR_RETURN(reschedule_, CudaReschedule::create(device_, scratch, o.max_requests, plan_.data()));
  }
  for (CudaExecutor& e : executors_) planners_.emplace_back(e.kind, &e.planner);
  args_.plan = plan_.as<std::uint8_t>();
  args_.mask_bits = mask_.as<std::uint8_t>();
  args_.partial_out = partial_out_.as<float>();
  args_.partial_lse = partial_lse_.as<float>();
  args_.span_counter = counters_.as<std::uint32_t>();
  args_.merge_counters = counters_.as<std::uint32_t>() + kSpanCounterWords;
  args_.first_merges = device_.info().num_sms >= 2;
  args_.shared_out = shared_out_.as<float>();
  args_.shared_lse = shared_lse_.as<float>();
  args_.shared_counters = args_.merge_counters + merges;
  const std::span<const std::byte> values = variant.args.bytes();
  FOVEA_CHECK(values.size() <= sizeof args_.variant_params);
  std::memcpy(args_.variant_params, values.data(), values.size());
  made_params_ = variant.args.shipped();
  return ok_status();
}

// grow() for page lists on the device: one launch.
Status CudaPagedAttention::reschedule_for(std::span<const std::int32_t> kv_lens, Stream stream) {
  std::int32_t wrong = 0;  // no way out of the loop, so that it is one of vectors
  const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(most_tokens_, INT32_MAX));
  for (std::size_t i = 0; i < kv_lens.size(); ++i) wrong |= (kv_lens[i] < kv_lens_[i]) | (kv_lens[i] > most);
  for (std::size_t i = 0; wrong != 0 && i < kv_lens.size(); ++i) {
    if (kv_lens[i] < kv_lens_[i]) {
      return invalid_argument("request {} shrank from {} to {} tokens; plan() again", i, kv_lens_[i], kv_lens[i]);
    }
    if (kv_lens[i] > most_tokens_) {
      return out_of_range("request {} grew to {} tokens, its page list holds {}", i, kv_lens[i], most_tokens_);
    }
  }
  reschedule_ahead_ = true;
  FOVEA_RETURN_IF_ERROR(reschedule_.launch(kv_lens, stream.handle));
  std::copy(kv_lens.begin(), kv_lens.end(), kv_lens_.begin());
  planner_behind_ = true;
  return ok_status();
}

// A graph that captured run() reads page lists where they were then, and nobody could tell it otherwise.
Status CudaPagedAttention::set_page_lists(const std::int32_t* entries, const std::int32_t* list_tokens) {
  if (captured_lists_ != nullptr && entries != captured_lists_) {
    const auto where = [&](const std::int32_t* lists) {
      return lists == entries_.as<std::int32_t>() ? std::string("in host memory")
                                                  : fmt::format("on the device at {}", fmt::ptr(lists));
    };
    return invalid_argument(
        "page_indices lie {}, but a graph captured run() when they lay {}, where its replays read them; keep them "
        "there, or use another Attention",
        where(entries), where(captured_lists_));
  }
  if (captured_lists_ != nullptr && list_tokens != args_.kv_lens) {
    return invalid_argument(
        "list_tokens lie at {}, but a graph captured run() when they lay at {}, where its replays read them; keep them "
        "there, or use another Attention",
        fmt::ptr(list_tokens), fmt::ptr(args_.kv_lens));
  }
  args_.page_entries = entries;
  args_.kv_lens = list_tokens;
  return ok_status();
}

Status CudaPagedAttention::grow_on_device(const TensorView& kv_lens, Stream stream) {
  FOVEA_RETURN_IF_ERROR(check_growth(options_, planned_, translator_));
  if (!can_reschedule_)
    return unsupported("this plan grows by packing anew, which the host does: call plan() or grow()");
  FOVEA_RETURN_IF_ERROR(check_array("kv_lens", kv_lens, {translator_.num_requests()}, DType::kI32, place_));
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  lens_known_ = false;
  if (stream.handle != nullptr) {
    FOVEA_ASSIGN_OR_RETURN(const bool capturing, cuda::is_capturing(device_, stream.handle));
    graph_grows_ = graph_grows_ || capturing;
  }
  reschedule_ahead_ = true;
  return reschedule_.launch(static_cast<const std::int32_t*>(kv_lens.data), stream.handle);
}

Status CudaPagedAttention::check_not_capturing(Stream stream) const {
  if (stream.handle == nullptr) return ok_status();  // the default stream cannot capture
  FOVEA_ASSIGN_OR_RETURN(const bool capturing, cuda::is_capturing(device_, stream.handle));
  if (!capturing) return ok_status();
  return invalid_argument("the stream is capturing a graph; plan outside of it, in the stream that replays it");
}

// Copies the plan of the planner, the packed page lists and the mask to the device, in the stream.
Status CudaPagedAttention::upload(std::span<const std::int32_t> entries, std::span<const std::uint8_t> mask,
                                  Stream stream) {
  if (entries.size_bytes() > entries_.size_bytes()) {
    return out_of_range("page lists of {} entries, declared were {}; raise max_page_entries", entries.size(),
                        entries_.size_bytes() / sizeof(std::int32_t));
  }
  if (mask.size() > mask_.size_bytes()) {
    return out_of_range("a mask of {} bytes, declared were {}; raise max_mask_bytes", mask.size(), mask_.size_bytes());
  }
  cuda::CopySlot& staging = staging_[next_staging_];
  next_staging_ ^= 1;
  FOVEA_RETURN_IF_ERROR(staging.copied.synchronize());
  std::byte* const host = staging.memory.data();
  PlanGrowth growth = options_.device_growth ? active_->planner.growth() : PlanGrowth{};
  can_reschedule_ = growth.arrays != nullptr;
  growth.max_tokens = std::min(growth.max_tokens, translator_.most_list_tokens());
  most_tokens_ = growth.max_tokens;
  FOVEA_ASSIGN_OR_RETURN(plan_bytes_, pack_device_plan(active_->planner.view(), std::span(host, max_plan_bytes_),
                                                       growth, worker_starts(active_->kind)));
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, plan_.data(), host, plan_bytes_, stream.handle));
  std::byte* const host_entries = host + max_plan_bytes_;
  std::byte* const host_mask = host_entries + entries_.size_bytes();
  if (!entries.empty()) {
    std::memcpy(host_entries, entries.data(), entries.size_bytes());
    FOVEA_RETURN_IF_ERROR(
        cuda::copy_to_device(device_, entries_.data(), host_entries, entries.size_bytes(), stream.handle));
  }
  if (!mask.empty()) {
    std::memcpy(host_mask, mask.data(), mask.size());
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, mask_.data(), host_mask, mask.size(), stream.handle));
  }
  return staging.copied.record(stream.handle);
}

// Of the kernel that a graph captured for so many rows, where there is one.
std::optional<tune::PlanKernel> kernel_of(const CudaExecutor* captured) {
  return captured == nullptr ? std::nullopt : std::optional(captured->kind);
}

// The executor whose planner the chooser took becomes the active one.
Status CudaPagedAttention::take_choice(const Status& planned, std::uint32_t rows) {
  FOVEA_RETURN_IF_ERROR(planned);
  if (chooser_.refused()) return captured_.refusal(rows);
  for (CudaExecutor& e : executors_) {
    if (e.kind == chooser_.choice().kernel) active_ = &e;
  }
  return ok_status();
}

Status CudaPagedAttention::plan_batch(const AttentionBatch& batch) {
  std::uint32_t rows = 0;
  for (std::int32_t i = 0; i < batch.num_requests; ++i)
    rows += static_cast<std::uint32_t>(std::max(batch.q_lens[i], 0));
  FOVEA_RETURN_IF_ERROR(captured_.check_rows(rows));
  return take_choice(chooser_.plan(batch, planners_, kernel_of(captured_.executor(rows))), rows);
}

// A call that plans: make() does, and uploads. Where it fails there is no plan.
template <typename Make>
Status CudaPagedAttention::make_plan(Stream stream, Make make) {
  planned_ = planner_behind_ = false;
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check_not_capturing(stream));
  FOVEA_RETURN_IF_ERROR(make());
  planned_ = true;
  return ok_status();
}

Status CudaPagedAttention::plan(const RequestBatch& batch, Stream stream) {
  return make_plan(stream, [&]() -> Status {
    FOVEA_ASSIGN_OR_RETURN(const AttentionBatch translated, translator_.requests(batch));
    FOVEA_RETURN_IF_ERROR(plan_batch(translated));
    lists_on_device_ = batch.page_indices_device == DeviceKind::kCuda;
    FOVEA_RETURN_IF_ERROR(set_page_lists(lists_on_device_ ? batch.page_indices : entries_.as<std::int32_t>()));
    std::span<const std::uint8_t> mask;
    if (batch.mask == AttentionMask::kBits) mask = {batch.mask_bits, static_cast<std::size_t>(batch.mask_bytes)};
    FOVEA_RETURN_IF_ERROR(upload(translator_.page_entries(), mask, stream));
    kv_lens_.assign(batch.kv_lens, batch.kv_lens + batch.num_requests);
    lens_known_ = true;
    return ok_status();
  });
}

Status CudaPagedAttention::plan_rows(const BlockRowBatch& batch, bool selected) {
  const auto rows = static_cast<std::uint32_t>(batch.num_rows);
  FOVEA_RETURN_IF_ERROR(captured_.check_rows(rows));
  return take_choice(chooser_.plan_rows(batch, selected, planners_, kernel_of(captured_.executor(rows))), rows);
}

Status CudaPagedAttention::plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) {
  return make_plan(stream, [&]() -> Status {
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.cascade(num_rows, levels));
    FOVEA_RETURN_IF_ERROR(plan_rows(translated, false));
    FOVEA_RETURN_IF_ERROR(set_page_lists(entries_.as<std::int32_t>()));
    FOVEA_RETURN_IF_ERROR(upload(translator_.page_entries(), {}, stream));
    std::int64_t at = 0;
    for (const CascadeLevel& level : levels) {
      if (level.page_indices_device == DeviceKind::kCuda) {
        const auto bytes = static_cast<std::size_t>(level.num_page_indices) * sizeof(std::int32_t);
        FOVEA_RETURN_IF_ERROR(
            cuda::copy_on_device(device_, entries_.as<std::int32_t>() + at, level.page_indices, bytes, stream.handle));
      }
      at += level.num_page_indices;
    }
    return ok_status();
  });
}

// Plans the block rows that translate() returns, whose lists and mask the translator holds.
template <typename Translate>
Status CudaPagedAttention::plan_given(Translate translate, Stream stream) {
  return make_plan(stream, [&]() -> Status {
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translate());
    const bool there = translated.entries_on_device;
    FOVEA_RETURN_IF_ERROR(plan_rows(translated, there && reads_once(translated)));
    FOVEA_RETURN_IF_ERROR(set_page_lists(there ? translated.page_entries : entries_.as<std::int32_t>()));
    return upload(translator_.page_entries(), translator_.given_mask(), stream);
  });
}

// Whether every block row is of one query token, and no two are of the same one under the same KV head.
bool CudaPagedAttention::reads_once(const BlockRowBatch& batch) {
  const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
  pairs_read_.assign(static_cast<std::size_t>(batch.num_rows) * heads, false);
  for (const abi::BlockRow& row : batch.block_rows) {
    if (row.row_count != 1) return false;
    for (std::size_t head = row.head_begin; head < row.head_end; ++head) {
      const std::size_t pair = batch.row_indices[row.row_begin] * heads + head;
      if (pair >= pairs_read_.size() || pairs_read_[pair]) return false;
      pairs_read_[pair] = true;
    }
  }
  return true;
}

Status CudaPagedAttention::plan_selected(const SelectedBatch& batch, Stream stream) {
  return make_plan(stream, [&]() -> Status {
    FOVEA_ASSIGN_OR_RETURN(const BlockRowBatch translated, translator_.selected(batch));
    FOVEA_RETURN_IF_ERROR(plan_rows(translated, true));
    FOVEA_RETURN_IF_ERROR(set_page_lists(batch.page_indices, batch.list_tokens));
    return upload({}, {}, stream);
  });
}

Status CudaPagedAttention::grow(std::span<const std::int32_t> kv_lens, Stream stream) {
  if (!planned_) return invalid_argument("grow() needs a plan; call plan() first");
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check_not_capturing(stream));
  FOVEA_ASSIGN_OR_RETURN(const std::optional<AttentionBatch> packed, translator_.grow(kv_lens, active_->planner));
  if (can_reschedule_ && lists_on_device_ && lens_known_ && !graph_grows_) return reschedule_for(kv_lens, stream);
  FOVEA_RETURN_IF_ERROR(active_->planner.check_growth(kv_lens.data()));
  planned_ = false;
  FOVEA_RETURN_IF_ERROR(packed.has_value() ? plan_batch(*packed) : active_->planner.grow(kv_lens.data()));
  planner_behind_ = false;
  FOVEA_RETURN_IF_ERROR(upload(translator_.page_entries(), {}, stream));
  kv_lens_.assign(kv_lens.begin(), kv_lens.end());
  lens_known_ = true;
  planned_ = true;
  return ok_status();
}

// Takes the pool's tensor maps, made when it is seen first.
Status CudaPagedAttention::set_pool(const abi::KvPoolView& pool) {
  const auto is_it = [&](const PoolMaps& known) { return same_pool(pool, known.pool); };
  if (pool_ != nullptr && is_it(*pool_)) return ok_status();
  if (const auto known = pools_.find(pool.k); known != pools_.end() && is_it(known->second)) {
    pool_ = &known->second;
  } else {
    FOVEA_ASSIGN_OR_RETURN(PoolMaps made, make_maps(pool));
    if (pools_.size() >= kMostPools) pools_.clear();
    pool_ = &(pools_[pool.k] = std::move(made));
  }
  args_.pool = pool;
  args_.num_pages = static_cast<std::uint32_t>(pool.num_pages);
  return ok_status();
}

Result<CudaPagedAttention::PoolMaps> CudaPagedAttention::make_maps(const abi::KvPoolView& pool) const {
  const std::int64_t bits = dtype_bits(options_.kv_dtype);
  for (const auto& [what, elements] : {std::pair{"page", pool.page_stride}, std::pair{"token", pool.token_stride},
                                       std::pair{"head", pool.head_stride}}) {
    if (elements * bits % 128 != 0 || elements < 0) {
      return invalid_argument("k has {}s {} bytes apart, expected a multiple of 16", what, elements * bits / 8);
    }
  }
  for (const void* p : {pool.k, pool.v}) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) {
      return invalid_argument("k or v starts at {}, which is no multiple of 16 bytes", p);
    }
  }
  PoolMaps made{pool, {}};
  for (const CudaExecutor& e : executors_) {
    FOVEA_ASSIGN_OR_RETURN(const KvMaps maps, e.maps(device_, options_, pool));
    made.maps.push_back(maps);
  }
  return made;
}

// Reads the word of the plan that a growth on the device leaves its answer in.
Status CudaPagedAttention::growth_status(Stream stream) const {
  if (!planned_) return invalid_argument("growth_status() needs a plan; call plan() first");
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check_not_capturing(stream));
  std::uint32_t error = 0;
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(device_, &error,
                                           plan_.as<std::byte>() + offsetof(abi::DevicePlanHeader, reschedule_error),
                                           sizeof error, stream.handle));
  FOVEA_RETURN_IF_ERROR(cuda::synchronize(device_, stream.handle));
  if (error == 0) return ok_status();
  if (error == abi::kNone)
    return unsupported("a captured grow_on_device() met a plan that cannot be cut on the device");
  return out_of_range(
      "the length of request {} shrank, or outgrew the {} tokens that its page list may hold; the plan before stays",
      error - 1, most_tokens_);
}

// That the pool is stored as the kernels were compiled for.
Status CudaPagedAttention::check_pool(const abi::KvPoolView& pool) const {
  const bool token_scales = pool.granularity == abi::ScaleGranularity::kTokenHead;
  const bool scaled = options_.kv_token_scales || options_.kv_dtype == DType::kI8 || options_.kv_dtype == DType::kI4;
  if (static_cast<DType>(pool.dtype) != options_.kv_dtype || token_scales != scaled ||
      (pool.rotated != 0) != options_.kv_rotated) {
    return invalid_argument("KV pool {} is {}{}{}, declared was {}{}{}", pool_index_,
                            dtype_name(static_cast<DType>(pool.dtype)),
                            token_scales ? " with a scale for each token" : "", pool.rotated != 0 ? ", rotated" : "",
                            dtype_name(options_.kv_dtype), scaled ? " with a scale for each token" : "",
                            options_.kv_rotated ? ", rotated" : "");
  }
  // Tokens without pages are one page of entries.
  const bool pages = pool.page_tokens == options_.page_tokens && pool.entries_per_page == 1;
  if (translator_.contiguous_tokens() < 0 ? !pages : pool.entry_tokens != options_.page_tokens) {
    return unsupported("KV pool {} has pages of {} tokens in {} entries, declared were {} in one", pool_index_,
                       pool.page_tokens, pool.entries_per_page, options_.page_tokens);
  }
  return ok_status();
}

Status CudaPagedAttention::run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out,
                               const TensorView& lse, Stream stream, const RunValues& values) {
  if (!planned_) return invalid_argument("run() needs a plan; call plan() first");
  const std::int64_t rows = num_rows();
  FOVEA_RETURN_IF_ERROR(check_aligned("q", q));
  FOVEA_RETURN_IF_ERROR(check_aligned("out", out));
  if (pool_index_ >= pools.size()) {
    return invalid_argument("the plan reads KV pool {}, the call has {}", pool_index_, pools.size());
  }
  FOVEA_RETURN_IF_ERROR(check_pool(pools[pool_index_]));
  FOVEA_RETURN_IF_ERROR(
      set_run_values(options_, made_params_, values, *reinterpret_cast<AttentionParams*>(args_.variant_params)));
  if (rows == 0) return ok_status();
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(set_pool(pools[pool_index_]));
  args_.q = q.data;
  args_.out = out.data;
  args_.lse = static_cast<float*>(lse.data);
  args_.q_row_stride = q.strides[0];
  args_.q_head_stride = q.strides[1];
  args_.out_row_stride = out.strides[0];
  args_.out_head_stride = out.strides[1];
  const bool shares = captured_.shared(static_cast<std::uint32_t>(rows)).value_or(runs_shared());
  bool capturing = false;
  if (stream.handle != nullptr) {
    FOVEA_ASSIGN_OR_RETURN(capturing, cuda::is_capturing(device_, stream.handle));
    if (capturing) {
      if (captured_lists_ == nullptr) captured_lists_ = args_.page_entries;
      const std::int64_t most_rows = std::min({q.shape[0], out.shape[0], is_empty(lse) ? out.shape[0] : lse.shape[0]});
      if (!graphs_by_kind_) captured_.add(static_cast<std::uint32_t>(rows), most_rows, active_, shares);
    }
  }
  const cuda::Function& function = shares ? *active_->shared : active_->function;
  args_.lists_fixed = args_.page_entries == entries_.as<std::int32_t>();
  active_->launch.stream = stream.handle;
  // A kernel that overlaps the one ahead of it reads the plan before that one has ended. Whether a replay that writes
  // plans is ahead of a run outside of graphs, nobody knows here.
  active_->launch.programmatic_serialization =
      active_->choice.programmatic_launch && !reschedule_ahead_ && (capturing || !graph_grows_);
  reschedule_ahead_ = false;
  KvMaps& maps = pool_->maps[static_cast<std::size_t>(active_ - executors_.data())];
  void* const parameters[] = {&args_, &maps.k, &maps.v};
  return cuda::launch(function, active_->launch, parameters);
}

}  // namespace

Result<std::unique_ptr<PagedAttention>> create_cuda_pool_attention(const AttentionConfig& config, std::size_t pool,
                                                                   DevicePlace place) {
  AttentionConfig own = config;
  if (!config.pools.empty()) own.set_format(config.pools[pool]);
  FOVEA_RETURN_IF_ERROR(check_attention_options(own.options));
  FOVEA_RETURN_IF_ERROR(check_cuda_types(own.options));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Device device, cuda_device(place.index));
  FOVEA_ASSIGN_OR_RETURN(const VariantChoice variant, choose_variant(own.options));
  FOVEA_ASSIGN_OR_RETURN(CudaExecutors executors, make_executors(device, own, variant.spec));
  auto impl = std::make_unique<CudaPagedAttention>(own, pool, place, device, std::move(executors));
  FOVEA_RETURN_IF_ERROR(impl->init(variant));
  return std::unique_ptr<PagedAttention>(std::move(impl));
}

}  // namespace fovea
