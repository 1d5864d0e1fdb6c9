#include "attention/plan_chooser.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace fovea {
namespace {

static_assert(plan_kernel(DecodeKernel::kGeneral) == tune::PlanKernel::kGeneral);
static_assert(plan_kernel(DecodeKernel::kWarpPerWorker) == tune::PlanKernel::kWarpPerWorker);
static_assert(plan_kernel(DecodeKernel::kLowBatch) == tune::PlanKernel::kLowBatch);
static_assert(plan_kernel(DecodeKernel::kPrefill) == tune::PlanKernel::kPrefill);

Planner& planner_of(PlanChooser::Planners planners, tune::PlanKernel kernel) {
  for (const auto& [of, planner] : planners) {
    if (of == kernel) return *planner;
  }
  check_failed(__FILE__, __LINE__, "a planner for the kernel");
}

// Whether some run is read for several requests.
bool shares_runs(const Planner& planner) {
  const abi::PlanView plan = planner.view();
  return !std::all_of(plan.block_rows, plan.block_rows + plan.header->num_block_rows,
                      [](const abi::BlockRow& row) { return (row.flags & abi::kRowsSolo) != 0; });
}

// What requests see, each for itself.
tune::PlanFacts facts_of(const AttentionBatch& batch, std::int64_t qo_heads, std::int64_t kv_heads,
                         std::int64_t head_dim, std::int64_t token_bytes) {
  tune::PlanFacts facts;
  facts.bit_mask = batch.mask == abi::MaskKind::kBits;
  facts.decode = !facts.bit_mask;
  std::int64_t all = 0, longest = 0, of_queries = 0;
  for (std::int32_t i = 0; i < batch.num_requests; ++i) {
    const std::int32_t q_len = batch.q_lens[i];
    facts.most_q = std::max(facts.most_q, q_len);
    facts.decode = facts.decode && q_len == 1;
    const std::int64_t tokens =
        tokens_seen(q_len, batch.kv_lens[i], batch.mask == abi::MaskKind::kWindow, batch.window_left);
    facts.requests += tokens > 0 ? 1 : 0;
    facts.rows += std::max(q_len, 0) * qo_heads;
    all += tokens;
    of_queries += tokens * std::max(q_len, 1);
    longest = std::max(longest, tokens);
  }
  facts.most_rows = facts.most_q * (qo_heads / kv_heads);
  // Dummies that graphs are captured with: as many pairs as the plans that replays will meet.
  if (facts.requests == 0) facts.requests = batch.num_requests;
  facts.pairs = facts.requests * kv_heads;
  facts.kv_bytes = all * token_bytes;
  facts.flops = 4 * qo_heads * head_dim * of_queries;
  facts.longest_bytes = longest * token_bytes;
  return facts;
}

}  // namespace

std::int64_t token_bytes(const AttentionOptions& o) {
  return std::int64_t{2} * o.head_dim * dtype_bits(o.kv_dtype) / 8 * o.num_kv_heads;
}

std::int64_t tokens_seen(std::int32_t q_len, std::int32_t kv_len, bool window, std::int32_t window_left) {
  const std::int64_t tokens = std::max(kv_len, 0);
  return window ? std::min(tokens, std::int64_t{window_left} + std::max(q_len, 1)) : tokens;
}

PlanChooser::PlanChooser(const AttentionOptions& options, tune::KernelMenu menu)
    : menu_(std::move(menu)),
      token_bytes_(token_bytes(options)),
      qo_heads_(options.num_qo_heads),
      kv_heads_(options.num_kv_heads),
      head_dim_(options.head_dim) {
  if (options.decode_kernel != DecodeKernel::kAuto) menu_.asked = plan_kernel(options.decode_kernel);
}

Status PlanChooser::plan_with(tune::PlanKernel kernel, const AttentionBatch& batch, bool share, Planners planners) {
  if (share) return planner_of(planners, kernel).plan(batch);
  AttentionBatch apart = batch;  // without the lists nothing can be shared
  apart.page_table = nullptr;
  return planner_of(planners, kernel).plan(apart);
}

// A batch is planned once as a rule: packing tells what is shared, and the last batch tells what to expect.
Status PlanChooser::plan(const AttentionBatch& batch, Planners planners, std::optional<tune::PlanKernel> captured) {
  facts_ = facts_of(batch, qo_heads_, kv_heads_, head_dim_, token_bytes_);
  facts_.captured = captured;
  choice_ = tune::choose_plan_kernel(menu_, facts_);
  if (refused()) return ok_status();
  tune::PlanKernel tried = choice_.kernel;
  if (shared_before_ && !captured.has_value()) tried = tune::PlanKernel::kGeneral;
  FOVEA_RETURN_IF_ERROR(plan_with(tried, batch, choice_.share, planners));
  const bool shares = choice_.share && !facts_.bit_mask && shares_runs(planner_of(planners, tried));
  if (shares) {
    Planner& general = planner_of(planners, tune::PlanKernel::kGeneral);
    if (tried != tune::PlanKernel::kGeneral) FOVEA_RETURN_IF_ERROR(general.plan(batch));
    tried = tune::PlanKernel::kGeneral;
    choice_.share = shares_runs(general);  // its tiles are others
    if (choice_.share) {
      facts_.shared_bytes = static_cast<std::int64_t>(general.stats().kv_bytes);
      choice_ = tune::choose_plan_kernel(menu_, facts_);
    }
  }
  if (!captured.has_value()) shared_before_ = choice_.reason == tune::PlanReason::kShares;
  if (choice_.kernel == tried && (choice_.share || !shares)) return ok_status();
  return plan_with(choice_.kernel, batch, choice_.share, planners);
}

Status PlanChooser::plan_rows(const BlockRowBatch& batch, bool selected, Planners planners,
                              std::optional<tune::PlanKernel> captured) {
  facts_ = {};
  facts_.given = true;
  facts_.decode = facts_.selected = selected;
  facts_.captured = captured;
  facts_.pairs = batch.num_rows * kv_heads_;
  for (const abi::BlockRow& row : batch.block_rows) {
    facts_.most_q = std::max(facts_.most_q, static_cast<std::int32_t>(row.row_count));
    facts_.bit_mask = facts_.bit_mask || row.mask == abi::MaskKind::kBits;
  }
  facts_.most_rows = facts_.most_q * (qo_heads_ / kv_heads_);
  choice_ = tune::choose_plan_kernel(menu_, facts_);
  if (refused()) return ok_status();
  return planner_of(planners, choice_.kernel).plan_block_rows(batch);
}

}  // namespace fovea
