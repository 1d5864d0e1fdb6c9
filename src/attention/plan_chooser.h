// From a batch to a plan by the planner of the kernel that is best for it (tune/plan_choice.h): host logic alone, so
// that `fovea plan explain` says what a GPU would run without one. Held by cuda_attention.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/planner.h"
#include "fovea/attention.h"
#include "tune/plan_choice.h"

namespace fovea {

// The public names are the kernels' (static_asserts in plan_chooser.cc).
constexpr tune::PlanKernel plan_kernel(DecodeKernel kernel) { return static_cast<tune::PlanKernel>(kernel); }

class PlanChooser {
 public:
  // planners: one a kernel that may be chosen, kGeneral's among them; they outlive the chooser's use.
  PlanChooser() = default;
  PlanChooser(const AttentionOptions& options, tune::KernelMenu menu);

  // Of a batch of requests. captured: the kernel that a graph replays. kUnsupported where that cannot run the batch.
  using Planners = std::span<const std::pair<tune::PlanKernel, Planner*>>;
  Status plan(const AttentionBatch& batch, Planners planners, std::optional<tune::PlanKernel> captured);
  // Of block rows as given. selected: one query token a request, and no two block rows for the same KV head of one.
  Status plan_rows(const BlockRowBatch& batch, bool selected, Planners planners,
                   std::optional<tune::PlanKernel> captured);

  // Of the last plan, whether or not planning went well.
  const tune::PlanChoice& choice() const { return choice_; }
  bool refused() const { return choice_.reason == tune::PlanReason::kCannotReplay; }
  // The kernel and why, in a line.
  std::string explain() const { return tune::describe(menu_, facts_, choice_); }

 private:
  Status plan_with(tune::PlanKernel kernel, const AttentionBatch& batch, bool share, Planners planners);

  tune::KernelMenu menu_;
  std::int64_t token_bytes_ = 0;
  std::int64_t qo_heads_ = 1, kv_heads_ = 1, head_dim_ = 1;
  tune::PlanFacts facts_;
  tune::PlanChoice choice_;
  bool shared_before_ = false;  // the last batch had runs that are worth sharing
};

// Keys and values of one token under all KV heads.
std::int64_t token_bytes(const AttentionOptions& options);

// Tokens of a request that some of its queries see.
std::int64_t tokens_seen(std::int32_t q_len, std::int32_t kv_len, bool window, std::int32_t window_left);

}  // namespace fovea
