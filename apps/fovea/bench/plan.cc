// `fovea bench plan`: how long planning takes, and how good the plans are in the cost model: makespan against an even
// share, split rows, drift after many growths, bytes that sharing saves on PAT's trees.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "commands.h"
#include "console.h"
#include "core/plan/device_plan.h"
#include "core/plan/planner.h"
#include "machine/machine.h"
#include "workload/lengths.h"
#include "workload/paged_batch.h"

namespace fovea::app {
namespace {

struct BenchPlanState {
  std::int32_t requests = 256;
  std::int32_t tokens = 4096;
  std::int32_t kv_heads = 8;
  std::int32_t group = 4;
  std::int32_t page = 16;
  std::int32_t workers = 132;
  std::int32_t repeats = 2000;
  bool trees = false;
  std::string json;
};

// Microseconds: the median of `repeats` calls, the first tenth not counted.
template <typename Call>
double median_us(std::int32_t repeats, Call&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (std::int32_t i = 0; i < repeats + repeats / 10; ++i) {
    const Clock::time_point start = Clock::now();
    call(i);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  times.erase(times.begin(), times.begin() + repeats / 10);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

PlannerOptions planner_options(const BenchPlanState& s, const PagedBatch& batch, std::int32_t growth) {
  PlannerOptions options;
  options.num_kv_heads = s.kv_heads;
  options.num_qo_heads = s.kv_heads * s.group;
  options.page_tokens = batch.page_tokens;
  options.num_workers = s.workers;
  options.limits = batch.limits(growth);
  return options;
}

double makespan_share(const PlanStats& stats, std::int32_t workers) {
  return static_cast<double>(stats.max_worker_cost) * workers / static_cast<double>(stats.total_cost);
}

Status bench_times(const BenchPlanState& s, BenchReport& report) {
  const std::int32_t steps = 2 * (s.repeats + s.repeats / 10) + 1000;
  // 4 roots, 16 nodes below them: a quarter and a quarter of the tokens shared.
  const PrefixTree tree{{4, 16, s.requests}, {s.tokens / 4, s.tokens / 4, s.tokens / 2}};
  const std::string shape = fmt::format("B{} S{} {}/{} page {} W{}", s.requests, s.tokens, s.kv_heads * s.group,
                                        s.kv_heads, s.page, s.workers);
  for (const bool shared : {false, true}) {
    const PagedBatch batch = shared
                                 ? tree_batch(tree, s.page, 1, PageOrder::kRandom, 1, steps)
                                 : flat_batch(constant_lengths(s.requests, 1), constant_lengths(s.requests, s.tokens),
                                              s.page, PageOrder::kRandom, 1, steps);
    const std::string name = shape + (shared ? ", forest of 20 nodes" : ", nothing shared");
    FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(planner_options(s, batch, steps)));
    FOVEA_RETURN_IF_ERROR(planner.plan(batch.view()));
    const double full = median_us(s.repeats, [&](std::int32_t) { (void)planner.plan(batch.view()).ok(); });
    report.add({"plan", name, "full", full, "us", std::nullopt, "", std::nullopt, true});
    std::vector<std::int32_t> lengths = batch.kv_lens;
    const double grow = median_us(s.repeats, [&](std::int32_t) {
      for (std::int32_t& length : lengths) ++length;
      (void)planner.grow(lengths.data()).ok();
    });
    report.add({"plan", name, "lengths grown", grow, "us", std::nullopt, "", std::nullopt, true});
    // What a device backend does besides: the plan into the one buffer that it copies.
    std::vector<std::byte> buffer(max_device_plan_bytes(planner, true));
    const auto pack = [&](const PlanGrowth& growth) {
      const Result<std::size_t> bytes = pack_device_plan(planner.view(), buffer, growth);
      return bytes.ok() ? static_cast<double>(*bytes) : 0.0;
    };
    const double grow_and_pack = median_us(s.repeats, [&](std::int32_t) {
      for (std::int32_t& length : lengths) ++length;
      (void)planner.grow(lengths.data()).ok();
      (void)pack({});
    });
    const double full_and_pack = median_us(s.repeats, [&](std::int32_t) {
      (void)planner.plan(batch.view()).ok();
      (void)pack({});
    });
    report.add({"plan", name, "full + pack", full_and_pack, "us", std::nullopt, "", std::nullopt, true});
    report.add({"plan", name, "lengths grown + pack", grow_and_pack, "us", std::nullopt, "", std::nullopt, true});
    report.add({"plan", name, "packed", pack({}) / 1024, "KiB", std::nullopt, "", std::nullopt, true});
    report.add({"plan", name, "packed, with what a device needs to cut again", pack(planner.growth()) / 1024, "KiB",
                std::nullopt, "", std::nullopt, true});
  }
  return ok_status();
}

// What plans for the two kernels of decode take on a device, which cuts them again, and the host's time to make them.
Status bench_bytes(const BenchPlanState& s, BenchReport& report) {
  for (const char* kind : {"constant", "uniform", "zipf"}) {
    FOVEA_ASSIGN_OR_RETURN(std::vector<std::int32_t> lengths, named_lengths(kind, s.requests, s.tokens, 7));
    const PagedBatch batch = flat_batch(constant_lengths(s.requests, 1), lengths, s.page, PageOrder::kSequential, 0);
    for (const WorkerStarts starts : {WorkerStarts::kItems, WorkerStarts::kWarps}) {
      PlannerOptions options = planner_options(s, batch, 0);
      if (starts == WorkerStarts::kWarps) options.num_workers = 1024;
      FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(options));
      FOVEA_RETURN_IF_ERROR(planner.plan(batch.view()));
      std::vector<std::byte> buffer(max_device_plan_bytes(planner, true, starts));
      FOVEA_ASSIGN_OR_RETURN(const std::size_t bytes,
                             pack_device_plan(planner.view(), buffer, planner.growth(), starts));
      const double us = median_us(s.repeats, [&](std::int32_t) {
        (void)planner.plan(batch.view()).ok();
        (void)pack_device_plan(planner.view(), buffer, planner.growth(), starts).ok();
      });
      const std::string name =
          fmt::format("B{} {} avg {} {}/{}, {} {}", s.requests, kind, s.tokens, s.kv_heads * s.group, s.kv_heads,
                      options.num_workers, starts == WorkerStarts::kWarps ? "warps" : "CTAs");
      report.add({"plan", name, "copied", static_cast<double>(bytes) / 1024, "KiB", 64.0, "", std::nullopt, true});
      report.add({"plan", name, "full + pack", us, "us", std::nullopt, "", std::nullopt, true});
    }
  }
  return ok_status();
}

Status bench_makespan(const BenchPlanState& s, BenchReport& report) {
  const std::int32_t steps = 1000;
  for (const char* kind : {"constant", "uniform", "zipf", "one_long"}) {
    FOVEA_ASSIGN_OR_RETURN(std::vector<std::int32_t> lengths, named_lengths(kind, 64, s.tokens, 7));
    const PagedBatch batch = flat_batch(constant_lengths(64, 1), lengths, s.page, PageOrder::kSequential, 0, steps);
    const PlannerOptions options = planner_options(s, batch, steps);
    FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(options));
    FOVEA_RETURN_IF_ERROR(planner.plan(batch.view()));
    const std::string name = fmt::format("B64 {} avg {} W{}", kind, s.tokens, s.workers);
    PlanStats stats = planner.stats();
    report.add(
        {"plan", name, "makespan / even share", makespan_share(stats, s.workers), "x", 1.0, "", std::nullopt, true});
    report.add({"plan", name, "split rows", static_cast<double>(stats.split_rows), "",
                static_cast<double>(s.workers - 1), "", std::nullopt, true});
    for (std::int32_t i = 0; i < steps; ++i) {
      for (std::int32_t& length : lengths) ++length;
      FOVEA_RETURN_IF_ERROR(planner.grow(lengths.data()));
    }
    const double grown = static_cast<double>(planner.stats().max_worker_cost);
    AttentionBatch again = batch.view();
    again.kv_lens = lengths.data();
    FOVEA_RETURN_IF_ERROR(planner.plan(again));
    report.add({"plan", name, "makespan after 1000 growths / fresh plan",
                grown / static_cast<double>(planner.stats().max_worker_cost), "x", 1.0, "", std::nullopt, true});
  }
  return ok_status();
}

Status bench_trees(const BenchPlanState& s, BenchReport& report) {
  for (const std::string_view text : pat_trees()) {
    FOVEA_ASSIGN_OR_RETURN(const PrefixTree tree, parse_prefix_tree(text));
    const PagedBatch batch = tree_batch(tree, 32, 1, PageOrder::kSequential, 3);
    FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(planner_options(s, batch, 0)));
    FOVEA_RETURN_IF_ERROR(planner.plan(batch.view()));
    const PlanStats stats = planner.stats();
    const double full =
        median_us(std::max(s.repeats / 20, 10), [&](std::int32_t) { (void)planner.plan(batch.view()).ok(); });
    const std::string name = fmt::format("{} {}/{}", text, s.kv_heads * s.group, s.kv_heads);
    report.add({"plan", name, "full", full, "us", std::nullopt, "", std::nullopt, true});
    report.add(
        {"plan", name, "bytes unshared / planned (partials counted)",
         static_cast<double>(stats.kv_bytes_unshared) / static_cast<double>(stats.kv_bytes + stats.partial_bytes), "x",
         std::nullopt, "", std::nullopt, false});
  }
  return ok_status();
}

int run_bench_plan(const BenchPlanState& s) {
  if (s.requests < 16 || s.requests % 16 != 0 || s.tokens < 64 || s.repeats < 1) {
    return fail(Status(StatusCode::kInvalidArgument,
                       "--requests must be a multiple of 16, --tokens at least 64 and --repeats at least 1"));
  }
  // Bounds that keep the page tables within a few hundred MB; heads, page and workers are checked by the planner too.
  if (s.page < 1 || s.page > 65536 || s.requests > 65536 || s.tokens > (1 << 24) || s.repeats > 10000000 ||
      s.group < 1 || s.group > 2048 || (std::int64_t{s.tokens} / s.page + 1) * s.requests > (std::int64_t{1} << 26)) {
    return fail(invalid_argument(
        "{} requests of {} tokens on pages of {}, group {}, {} repeats: expected at most 65536 requests and 2^26 pages "
        "of 1..65536 tokens, a group of 1..2048 and at most 10000000 repeats",
        s.requests, s.tokens, s.page, s.group, s.repeats));
  }
  if (const Status writable = check_output(s.json); !writable.ok()) return fail(writable);
  BenchReport report;
  const Machine machine = read_machine();
  report.set_machine("cpu", machine.cpu);
  report.set_machine("threads", 1.0);
  Status status = bench_times(s, report);
  if (status.ok()) status = bench_bytes(s, report);
  if (status.ok()) status = bench_makespan(s, report);
  if (status.ok() && s.trees) status = bench_trees(s, report);
  if (status.ok()) status = report.emit(s.json);
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace

RunFunction declare_bench_plan(Options& options) {
  auto state = std::make_shared<BenchPlanState>();
  options.add("requests", state->requests, "Requests of the timed batches, a multiple of 16");
  options.add("tokens", state->tokens, "Tokens of each");
  options.add("kv-heads", state->kv_heads, "KV heads");
  options.add("group", state->group, "Query heads a KV head");
  options.add("page", state->page, "Tokens a page");
  options.add("workers", state->workers, "Workers (CPU threads, or GPU CTAs) to plan for");
  options.add("repeats", state->repeats, "Calls behind each time; the median is shown");
  options.add_flag("trees", state->trees, "Also plan the 20 prefix trees of PAT's Figure 10");
  options.add("json", state->json, "Write the rows as JSON here; - is stdout");
  options.examples("  fovea bench plan\n  fovea bench plan --trees --json - | jq .rows");
  return [state] { return run_bench_plan(*state); };
}

}  // namespace fovea::app
