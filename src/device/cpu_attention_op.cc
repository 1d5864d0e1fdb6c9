// Plans with core/plan and runs with cpu/attention.
#include "device/cpu_attention_op.h"

#include "base/status.h"
#include "cpu/attention/attention.h"

namespace fovea {
namespace {

VariantId variant_of(const AttentionOpConfig& config) {
  if (config.softcap > 0.0f) return config.sinks != nullptr ? VariantId::kSoftcapSinks : VariantId::kSoftcap;
  return config.sinks != nullptr ? VariantId::kSinks : VariantId::kPlain;
}

class CpuAttentionOp : public AttentionOp {
 public:
  CpuAttentionOp(const AttentionOpConfig& config, AttentionProducts products, Planner planner, ThreadPool& pool)
      : planner_(std::move(planner)), variant_(variant_of(config)), pool_(pool) {
    params_.sm_scale = config.sm_scale;
    params_.softcap = config.softcap;
    params_.sinks = config.sinks;
    params_.products = products;
  }

  Status reserve() {
    const PlannerOptions& options = planner_.options();
    return workspace_.reserve(planner_.max_partial_rows(), options.head_dim, options.tile_rows, pool_.size());
  }
  Status plan(const AttentionBatch& batch) override { return planner_.plan(batch); }
  Status grow(const std::int32_t* kv_lens) override { return planner_.grow(kv_lens); }
  Status plan_block_rows(const BlockRowBatch& batch) override { return planner_.plan_block_rows(batch); }
  Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out, float* lse) override {
    return cpu::run_attention(planner_.view(), params_, variant_, q, pools.data(), static_cast<int>(pools.size()), out,
                              lse, workspace_, pool_);
  }
  PlanStats stats() const override { return planner_.stats(); }
  const Planner& planner() const override { return planner_; }

 private:
  Planner planner_;
  AttentionParams params_;
  VariantId variant_;
  ThreadPool& pool_;
  cpu::AttentionWorkspace workspace_;
};

}  // namespace

Result<std::unique_ptr<AttentionOp>> create_cpu_attention(const AttentionOpConfig& config, AttentionProducts products,
                                                          ThreadPool& pool) {
  AttentionOpConfig filled = config;
  if (filled.planner.num_workers == 0) filled.planner.num_workers = pool.size();
  filled.planner.kv_element_bits = dtype_bits(config.kv_dtype);
  FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(filled.planner));
  auto op = std::make_unique<CpuAttentionOp>(filled, products, std::move(planner), pool);
  FOVEA_RETURN_IF_ERROR(op->reserve());
  return std::unique_ptr<AttentionOp>(std::move(op));
}

}  // namespace fovea
