// `fovea plan explain`: a batch described in JSON -> its plan in words, as tables, and as SVG.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

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
};

Status explain(const ExplainState& s) {
  std::string text = kExample;
  std::string where = "example";
  if (!s.file.empty()) {
    if (Status status = read_input(s.file, &text); !status.ok()) return status;
    where = s.file == "-" ? "stdin" : s.file;
  }
  const Result<DescribedBatch> described = parse_batch(text, where);
  if (!described.ok()) return described.status();
  Result<Planner> planner = Planner::create(described->options);
  if (!planner.ok()) return planner.status();
  if (Status status = planner->plan(described->batch.view()); !status.ok()) return status;
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
  fmt::print("{}", explain_plan(*planner));
  if (s.verify)
    fmt::print("{:<24}every visible (row, head, token) once, one writer each, merges ascending\n", "verified");
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
  options.add_flag("steps", state->steps, "Also print what each of the four steps made");
  options.add_flag("verify", state->verify, "Also check the plan pair by pair");
  options.add_flag("example", state->example, "Print the example's JSON and exit");
  options.examples(
      "  fovea plan explain --steps --svg plan.svg\n"
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
