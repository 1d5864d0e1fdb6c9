// Attention of the engine on a CUDA device, whose runs may be several launches. A kernel reads one pool: over pools of
// several formats the block rows of each are a plan of their own, with executors and a workspace for its format, and a
// run is a launch for each, whether or not the plan has rows there, so that a captured run serves every later plan.
// Steps that decode and read prompts are two plans and two launches: decodes packed, by a kernel for few rows, as in
// steps of their own, and prompts in wide tiles.
#include <algorithm>

#include "attention/cuda_attention.h"
#include "attention/plan_chooser.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/tensor_rows.h"

namespace fovea {
namespace {

// Query tokens of a request, from which on it is a prompt. Any number works that is above what drafts give a request
// (NgramDrafter::kMostTokens and its own token), so that steps which verify are one launch, whoever has a draft.
constexpr std::int32_t kLeastPromptTokens = 17;

// Requests [begin, end) of a batch.
RequestBatch take_requests(const RequestBatch& batch, std::int32_t begin, std::int32_t end) {
  RequestBatch part = batch;
  part.num_requests = end - begin;
  part.q_lens += begin;
  part.kv_lens += begin;
  if (batch.list_begins != nullptr) {
    part.list_begins += begin;
  } else {
    part.page_indices += begin * batch.page_stride;
    if (part.num_page_indices > 0) part.num_page_indices -= begin * batch.page_stride;
  }
  if (batch.list_ends != nullptr) part.list_ends += begin;
  if (batch.mask_offsets != nullptr) part.mask_offsets += begin;
  return part;
}

class CudaPlans final : public PagedAttention {
 public:
  // prompts: for those behind decodes, over the only pool; null: all requests are one plan.
  CudaPlans(const AttentionConfig& config, DevicePlace place, std::vector<std::unique_ptr<PagedAttention>> pools,
            std::unique_ptr<PagedAttention> prompts)
      : PagedAttention(config.options, place),
        least_decode_bytes_(config.least_decode_bytes),
        pools_(std::move(pools)),
        prompts_(std::move(prompts)) {}

  // Requests read the first pool.
  Status plan(const RequestBatch& batch, Stream stream) override {
    const std::int32_t decodes = prompts_ == nullptr ? 0 : decodes_apart(batch);
    if (decodes == 0) return first().plan(batch, stream);
    in_use_.clear();
    FOVEA_RETURN_IF_ERROR(pools_[0]->plan(take_requests(batch, 0, decodes), stream));
    FOVEA_RETURN_IF_ERROR(prompts_->plan(take_requests(batch, decodes, batch.num_requests), stream));
    in_use_ = {{pools_[0].get(), 0}, {prompts_.get(), decodes}};
    return ok_status();
  }
  Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) override {
    return first().plan_cascade(num_rows, levels, stream);
  }
  Status plan_selected(const SelectedBatch& batch, Stream stream) override {
    return first().plan_selected(batch, stream);
  }
  Status plan_ragged(const RaggedBatch& batch, Stream stream) override { return first().plan_ragged(batch, stream); }
  Status plan_blocks(const BlockSparseBatch& batch, Stream stream) override {
    return first().plan_blocks(batch, stream);
  }
  Status grow(std::span<const std::int32_t> kv_lens, Stream stream) override {
    if (in_use_.size() > 1) return unsupported("grow() of a plan that is several launches; call plan() again");
    return pools_[0]->grow(kv_lens, stream);
  }
  Status grow_on_device(const TensorView& kv_lens, Stream stream) override {
    return pools_[0]->grow_on_device(kv_lens, stream);
  }
  Status growth_status(Stream stream) const override { return pools_[0]->growth_status(stream); }
  bool captured() const override {
    return std::any_of(pools_.begin(), pools_.end(), [](const auto& pool) { return pool->captured(); });
  }

  std::uint64_t run_kind() const override {
    std::uint64_t kind = in_use_.size();
    for (const Part& part : in_use_) {  // whose launch has its place in q
      kind = hash_combine(kind, hash_combine(part.of->run_kind(), static_cast<std::uint64_t>(part.first_row)));
    }
    return kind;
  }

  Status plan_block_rows(const BlockRowBatch& batch, Stream stream) override {
    in_use_.clear();
    for (const auto& pool : pools_) FOVEA_RETURN_IF_ERROR(pool->plan_block_rows(batch, stream));
    if (pools_.size() > 1) FOVEA_RETURN_IF_ERROR(check_covers(batch));
    for (const auto& pool : pools_) in_use_.push_back({pool.get(), kAllRows});
    return ok_status();
  }

  Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, const TensorView& lse,
             Stream stream, const RunValues& values) override {
    if (in_use_.empty()) return invalid_argument("run() needs a plan; call plan() first");
    for (const Part& part : in_use_) {
      if (part.first_row == kAllRows) {
        FOVEA_RETURN_IF_ERROR(part.of->run(q, pools, out, lse, stream, values));
        continue;
      }
      const std::int64_t begin = part.first_row, rows = part.of->num_rows();
      FOVEA_RETURN_IF_ERROR(part.of->run(take_rows(q, begin, rows), pools, take_rows(out, begin, rows),
                                         take_rows(lse, begin, rows), stream, values));
    }
    return ok_status();
  }

  std::int64_t num_rows() const override {
    if (in_use_.empty()) return -1;
    const Part& last = in_use_.back();
    return last.of->num_rows() + std::max<std::int64_t>(last.first_row, 0);
  }
  std::int64_t contiguous_tokens() const override { return pools_[0]->contiguous_tokens(); }
  Status check_pages(std::int64_t num_pages) const override {
    for (const Part& part : in_use_) FOVEA_RETURN_IF_ERROR(part.of->check_pages(num_pages));
    return ok_status();
  }
  std::size_t workspace_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& pool : pools_) bytes += pool->workspace_bytes();
    return bytes + (prompts_ == nullptr ? 0 : prompts_->workspace_bytes());
  }
  std::size_t plan_bytes() const override {
    std::size_t bytes = 0;
    for (const Part& part : in_use_) bytes += part.of->plan_bytes();
    return bytes;
  }
  const Planner& planner() const override { return pools_[0]->planner(); }
  std::string kernel_and_reason() const override {
    if (in_use_.size() == 1) return in_use_[0].of->kernel_and_reason();
    std::string text;
    for (std::size_t i = 0; i < in_use_.size(); ++i) {
      const Part& part = in_use_[i];
      const std::string what = part.first_row == kAllRows ? fmt::format("pool {}", i) : i == 0 ? "decodes" : "prompts";
      text += fmt::format("{}{}: {}", i == 0 ? "" : "; ", what, part.of->kernel_and_reason());
    }
    return text;
  }
  PlanStats stats() const override {
    PlanStats sum;
    for (const Part& part : in_use_) {
      const PlanStats stats = part.of->stats();
      sum.kv_bytes += stats.kv_bytes;
      sum.kv_bytes_unshared += stats.kv_bytes_unshared;
      sum.partial_bytes += stats.partial_bytes;
      sum.total_cost += stats.total_cost;
      sum.max_worker_cost += stats.max_worker_cost;  // launches follow each other
      sum.split_rows += stats.split_rows;
    }
    return sum;
  }

 private:
  static constexpr std::int64_t kAllRows = -1;
  struct Part {
    PagedAttention* of;
    std::int64_t first_row;  // of q and out, which its own follow; kAllRows: its block rows name rows of all
  };

  PagedAttention& first() {
    in_use_ = {{pools_[0].get(), kAllRows}};
    return *pools_[0];
  }

  // Leading requests of one query token that are a plan of their own; 0: none, as there are no prompts behind them, or
  // they read too little.
  std::int32_t decodes_apart(const RequestBatch& batch) const {
    std::int32_t decodes = 0;
    std::int64_t tokens = 0;
    for (; decodes < batch.num_requests && batch.q_lens[decodes] == 1; ++decodes) {
      tokens += tokens_seen(1, batch.kv_lens[decodes], batch.mask == AttentionMask::kWindow, batch.window_left);
    }
    const bool prompts = std::any_of(batch.q_lens + decodes, batch.q_lens + batch.num_requests,
                                     [](std::int32_t q_len) { return q_len >= kLeastPromptTokens; });
    return prompts && tokens * token_bytes(options_) >= least_decode_bytes_ ? decodes : 0;
  }

  // Each (query token, KV head) is written by the launch of one pool.
  Status check_covers(const BlockRowBatch& batch) {
    constexpr std::uint16_t kNoPool = 0xffff;
    const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
    pool_of_.assign(static_cast<std::size_t>(batch.num_rows) * heads, kNoPool);
    for (const abi::BlockRow& b : batch.block_rows) {
      for (std::uint32_t i = b.row_begin; i < b.row_begin + b.row_count; ++i) {
        const std::size_t row = batch.row_indices[i];
        for (std::size_t head = b.head_begin; head < b.head_end; ++head) {
          std::uint16_t& pool = pool_of_[row * heads + head];
          if (pool != kNoPool && pool != b.pool) {
            return unsupported("query token {} reads KV pools {} and {} under KV head {}, expected one", row, pool,
                               b.pool, head);
          }
          pool = b.pool;
        }
      }
    }
    const auto none = std::find(pool_of_.begin(), pool_of_.end(), kNoPool);
    if (none == pool_of_.end()) return ok_status();
    const auto at = static_cast<std::size_t>(none - pool_of_.begin());
    return invalid_argument(
        "query token {} has no block row for KV head {}; give it one, with 0 tokens if it sees nothing", at / heads,
        at % heads);
  }

  std::int64_t least_decode_bytes_;
  std::vector<std::unique_ptr<PagedAttention>> pools_;
  std::unique_ptr<PagedAttention> prompts_;
  std::vector<Part> in_use_;            // by the plan; empty: there is none
  std::vector<std::uint16_t> pool_of_;  // [rows, KV heads]
};

}  // namespace

Result<std::unique_ptr<PagedAttention>> create_cuda_paged_attention(const AttentionConfig& config, DevicePlace place) {
  const bool one_pool = config.pools.size() < 2;
  // Captured by anybody at any time, a run must be the same launches under every plan; with a batch's bits the same
  // whoever shares it, decodes stay with the kernel that they have among prompts.
  const bool apart = one_pool && config.graphs_by_kind && !config.options.batch_invariant &&
                     config.options.decode_kernel == DecodeKernel::kAuto;
  if (one_pool && !apart) return create_cuda_pool_attention(config, 0, place);
  std::vector<std::unique_ptr<PagedAttention>> pools;
  for (std::size_t i = 0; i < std::max<std::size_t>(config.pools.size(), 1); ++i) {
    FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<PagedAttention> pool, create_cuda_pool_attention(config, i, place));
    pools.push_back(std::move(pool));
  }
  std::unique_ptr<PagedAttention> prompts;
  if (apart) {
    FOVEA_ASSIGN_OR_RETURN(prompts, create_cuda_pool_attention(config, 0, place));
  }
  return std::unique_ptr<PagedAttention>(
      std::make_unique<CudaPlans>(config, place, std::move(pools), std::move(prompts)));
}

}  // namespace fovea
