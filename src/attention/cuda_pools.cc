// Attention over several KV pools on a CUDA device, of formats of their own. A kernel reads one pool: the block rows of
// each are a plan of their own, with executors and a workspace for its format, and a run is a launch for each pool,
// whether or not the plan has rows there, so that a captured run serves every later plan.
#include <algorithm>

#include "attention/cuda_attention.h"
#include "base/status.h"

namespace fovea {
namespace {

class CudaPools final : public PagedAttention {
 public:
  CudaPools(const AttentionOptions& options, DevicePlace place, std::vector<std::unique_ptr<PagedAttention>> pools)
      : PagedAttention(options, place), pools_(std::move(pools)) {}

  // Requests read the first pool.
  Status plan(const RequestBatch& batch, Stream stream) override { return first().plan(batch, stream); }
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
    return pools_[0]->grow(kv_lens, stream);
  }
  Status grow_on_device(const TensorView& kv_lens, Stream stream) override {
    return pools_[0]->grow_on_device(kv_lens, stream);
  }
  Status growth_status(Stream stream) const override { return pools_[0]->growth_status(stream); }
  bool captured() const override {
    return std::any_of(pools_.begin(), pools_.end(), [](const auto& pool) { return pool->captured(); });
  }

  int run_kind() const override {
    int kind = 0;
    for (std::size_t i = 0; i < in_use_; ++i) kind = 32 * kind + 1 + pools_[i]->run_kind();
    return kind;
  }

  Status plan_block_rows(const BlockRowBatch& batch, Stream stream) override {
    in_use_ = 0;
    for (const auto& pool : pools_) FOVEA_RETURN_IF_ERROR(pool->plan_block_rows(batch, stream));
    FOVEA_RETURN_IF_ERROR(check_covers(batch));
    in_use_ = pools_.size();
    return ok_status();
  }

  Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, const TensorView& lse,
             Stream stream, const RunValues& values) override {
    if (in_use_ == 0) return invalid_argument("run() needs a plan; call plan() first");
    for (std::size_t i = 0; i < in_use_; ++i) {
      FOVEA_RETURN_IF_ERROR(pools_[i]->run(q, pools, out, lse, stream, values));
    }
    return ok_status();
  }

  std::int64_t num_rows() const override { return in_use_ == 0 ? -1 : pools_[0]->num_rows(); }
  std::int64_t contiguous_tokens() const override { return pools_[0]->contiguous_tokens(); }
  Status check_pages(std::int64_t num_pages) const override { return pools_[0]->check_pages(num_pages); }
  std::size_t workspace_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& pool : pools_) bytes += pool->workspace_bytes();
    return bytes;
  }
  std::size_t plan_bytes() const override {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < in_use_; ++i) bytes += pools_[i]->plan_bytes();
    return bytes;
  }
  const Planner& planner() const override { return pools_[0]->planner(); }
  std::string kernel_and_reason() const override {
    std::string text;
    for (std::size_t i = 0; i < in_use_; ++i) {
      text += fmt::format("{}pool {}: {}", i == 0 ? "" : "; ", i, pools_[i]->kernel_and_reason());
    }
    return text;
  }
  PlanStats stats() const override {
    PlanStats sum;
    for (std::size_t i = 0; i < in_use_; ++i) {
      const PlanStats stats = pools_[i]->stats();
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
  PagedAttention& first() {
    in_use_ = 1;
    return *pools_[0];
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

  std::vector<std::unique_ptr<PagedAttention>> pools_;
  std::size_t in_use_ = 0;              // of pools_, by the plan; 0: there is none
  std::vector<std::uint16_t> pool_of_;  // [rows, KV heads]
};

}  // namespace

Result<std::unique_ptr<PagedAttention>> create_cuda_paged_attention(const AttentionConfig& config, DevicePlace place) {
  if (config.pools.size() < 2) return create_cuda_pool_attention(config, 0, place);
  std::vector<std::unique_ptr<PagedAttention>> pools;
  for (std::size_t i = 0; i < config.pools.size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<PagedAttention> pool, create_cuda_pool_attention(config, i, place));
    pools.push_back(std::move(pool));
  }
  return std::unique_ptr<PagedAttention>(std::make_unique<CudaPools>(config.options, place, std::move(pools)));
}

}  // namespace fovea
