// `fovea plan explain`: a batch described in JSON -> its plan in words, as tables, and as SVG.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda_executor.h"
#include "attention/plan_chooser.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "core/plan/explain.h"
#include "core/plan/verify.h"
#include "workload/batch_json.h"

namespace fovea::app {
namespace {

// Planned when no file is given: two documents, six questions about one and two about the other, one chat alone.
constexpr const char* kExample = R"({
  "title": "Nine requests over two shared documents",
  "query_heads": 8, "kv_heads": 2, "head_dim": 128, "page": 16, "workers": 8,
  "requests": [
    {"kv": 4500, "count": 6, "prefix": [["system prompt", 512], ["document A", 3584]]},
    {"kv": 2100, "count": 2, "prefix": [["system prompt", 512], ["document B", 1400]]},
    {"kv": 1800}
  ]
})";

struct ExplainState {
  std::string file;
  std::string svg;
  std::string json;
  bool steps = false;
  bool verify = false;
  bool example = false;
  std::string gpu;
};

// What an Attention for this batch alone would be made with.
AttentionOptions options_of(const PlannerOptions& p) {
  AttentionOptions o;
  o.num_qo_heads = p.num_qo_heads;
  o.num_kv_heads = p.num_kv_heads;
  o.head_dim = p.head_dim;
  o.kv_dtype = p.kv_element_bits == 8 ? DType::kF8E4M3 : p.kv_element_bits == 4 ? DType::kI4 : DType::kBF16;
  o.page_tokens = p.page_tokens;
  o.max_requests = p.limits.max_requests;
  o.max_rows = p.limits.max_rows;
  o.max_pages_per_request = p.limits.max_pages_per_request;
  o.share_prefixes = p.share_prefixes;
  o.batch_invariant = p.batch_invariant;
  return o;
}

// The planner and the line about the kernel that a GPU would run the batch with; needs no GPU.
struct GpuPlan {
  Planner planner;
  std::string kernel;
};
Result<GpuPlan> plan_for_gpu(const DescribedBatch& described, const std::string& arch) {
  const AttentionOptions o = options_of(described.options);
  constexpr int kSms = 132;
  FOVEA_ASSIGN_OR_RETURN(const VariantSpec variant, variant_spec(o));
  FOVEA_ASSIGN_OR_RETURN(const AllowedKernels allowed, allowed_kernels(o, variant, arch, kSms));
  std::vector<Planner> planners;
  for (const AllowedKernel& kernel : allowed.kernels) {
    FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(planner_options({o, {}, {}}, kernel.choice)));
    planners.push_back(std::move(planner));
  }
  std::vector<std::pair<tune::PlanKernel, Planner*>> by_kernel;
  for (std::size_t i = 0; i < planners.size(); ++i) by_kernel.emplace_back(allowed.kernels[i].kind, &planners[i]);
  PlanChooser chooser(o, allowed.menu);
  FOVEA_RETURN_IF_ERROR(chooser.plan(described.batch.view(), by_kernel, std::nullopt));
  std::size_t at = 0;
  while (by_kernel[at].first != chooser.choice().kernel) ++at;
  return GpuPlan{std::move(planners[at]), chooser.explain()};
}

Status explain(const ExplainState& s) {
  std::string text = kExample;
  std::string where = "example";
  if (!s.file.empty()) {
    if (Status status = read_input(s.file, &text); !status.ok()) return status;
    where = s.file == "-" ? "stdin" : s.file;
  }
  const Result<DescribedBatch> described = parse_batch(text, where);
  if (!described.ok()) return described.status();
  std::string kernel;
  Result<Planner> planner = Planner::create(described->options);
  if (!planner.ok()) return planner.status();
  if (s.gpu.empty()) {
    if (Status status = planner->plan(described->batch.view()); !status.ok()) return status;
  } else {
    FOVEA_ASSIGN_OR_RETURN(GpuPlan on_gpu, plan_for_gpu(*described, s.gpu));
    *planner = std::move(on_gpu.planner);
    kernel = std::move(on_gpu.kernel);
  }
  if (s.verify) {
    double pairs = 0.0;
    for (std::size_t i = 0; i < described->batch.q_lens.size(); ++i) {
      pairs += static_cast<double>(described->batch.q_lens[i]) * described->batch.kv_lens[i];
    }
    constexpr double kMaxPairs = 1e10;  // about a minute
    if (pairs > kMaxPairs) {
      return out_of_range("--verify looks at every (row, token) pair, {:.1e} here; at most {:.0e}", pairs, kMaxPairs);
    }
    if (Status status = verify_schedule(planner->view(), planner->max_partial_rows()); !status.ok()) return status;
    if (Status status = verify_packing(planner->view(), described->batch.view(), described->options.page_tokens);
        !status.ok()) {
      return status;
    }
  }
  if (!s.svg.empty()) {
    if (Status status = write_output(s.svg, draw_plan(*planner, described->title)); !status.ok()) return status;
  }
  const PlanStats stats = planner->stats();
  const abi::PlanHeader& header = *planner->view().header;
  if (!s.json.empty()) {
    const nlohmann::json figures = {{"rows", header.num_rows},
                                    {"block_rows", header.num_block_rows},
                                    {"items", header.num_items},
                                    {"queue_entries", header.num_queue_entries},
                                    {"merges", header.num_merges},
                                    {"partial_rows", header.num_partial_rows},
                                    {"kv_bytes", stats.kv_bytes},
                                    {"kv_bytes_unshared", stats.kv_bytes_unshared},
                                    {"partial_bytes", stats.partial_bytes},
                                    {"total_cost", stats.total_cost},
                                    {"max_worker_cost", stats.max_worker_cost},
                                    {"split_rows", stats.split_rows}};
    if (Status status = write_output(s.json, figures.dump() + "\n"); !status.ok()) return status;
  }
  if (s.json == "-" || s.svg == "-") return ok_status();
  if (!described->title.empty()) fmt::print("{}\n\n", described->title);
  if (!kernel.empty()) fmt::print("{:<26}{}\n", "kernel", kernel);
  fmt::print("{}", explain_plan(*planner));
  if (s.verify)
    fmt::print("{:<26}every visible (row, head, token) once, one writer each, merges ascending\n", "verified");
  if (s.steps) fmt::print("\n{}", explain_steps(*planner));
  if (!s.svg.empty()) fmt::print("\nwrote {}\n", s.svg);
  return ok_status();
}

}  // namespace

RunFunction declare_plan_explain(Options& options) {
  auto state = std::make_shared<ExplainState>();
  options.add_positional("file", state->file, "Batch in JSON; - is stdin; without it a small example is planned");
  options.add("svg", state->svg, "Draw the plan here: workers down, time across; - is stdout");
  options.add("json", state->json, "Write the figures as JSON here; - is stdout");
  options.add("gpu", state->gpu, "Plan for a GPU of this architecture (sm_90a) and say which kernel runs it, and why");
  options.add_flag("steps", state->steps, "Also print what each of the four steps made");
  options.add_flag("verify", state->verify, "Also check the plan pair by pair");
  options.add_flag("example", state->example, "Print the example's JSON and exit");
  options.examples(
      "  fovea plan explain --steps --svg plan.svg\n"
      "  fovea plan explain --gpu sm_90a\n"
      "  fovea plan explain --example > batch.json && fovea plan explain batch.json\n"
      "  echo '{\"lengths\": {\"kind\": \"zipf\", \"count\": 64, \"average\": 4096}}' | fovea plan explain -");
  return [state] {
    if (state->example) {
      fmt::print("{}\n", kExample);
      return kExitOk;
    }
    const Status status = explain(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
