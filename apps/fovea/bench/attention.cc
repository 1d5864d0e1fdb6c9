// `fovea bench attention`: its options. The CPU's suites are in bench/attention_cpu.cc, a GPU's in
// bench/attention_cuda.cc.
#include "bench/attention.h"

#include <cstdio>
#include <memory>

#include "base/status.h"
#include "bench/sweep.h"
#include "commands.h"
#include "console.h"
#include "workload/attention_cases.h"

namespace fovea::app {
namespace {

Status run(const BenchAttentionFlags& flags) {
  if (flags.seed < 0 || flags.cases < 1 || flags.cases > 10000) {
    return invalid_argument("--seed is {} and --cases {}, expected 0 or more and 1 to 10000", flags.seed, flags.cases);
  }
  if (flags.list) {
    if (flags.suite == "sweep") {
      std::puts(measured_cases_json(sweep_of(flags)).c_str());
      return ok_status();
    }
    FOVEA_ASSIGN_OR_RETURN(const std::vector<MeasuredCase> cases, measured_cases(flags.suite));
    std::puts(measured_cases_json(cases).c_str());
    return ok_status();
  }
  if (flags.repeats < 0 || flags.page < 1) return invalid_argument("--page must be positive, --repeats not negative");
  BenchAttentionFlags chosen = flags;
  if (chosen.repeats == 0) chosen.repeats = flags.device == "cpu" ? 7 : 25;
  if (flags.suite == "sweep" || flags.suite == "cliffs") return bench_sweep(chosen);
  return flags.device == "cpu" ? bench_attention_cpu(chosen) : bench_attention_cuda(chosen);
}

}  // namespace

bool is_wanted(const std::string& id, const std::string& only) {
  for (std::size_t begin = 0; begin <= only.size();) {
    const std::size_t end = std::min(only.find(',', begin), only.size());
    if (id.find(only.substr(begin, end - begin)) != std::string::npos) return true;
    begin = end + 1;
  }
  return false;
}

RunFunction declare_bench_attention(Options& options) {
  auto flags = std::make_shared<BenchAttentionFlags>();
  options.add("device", flags->device, "cpu or cuda:N");
  options.add(
      "suite", flags->suite,
      "all; on the CPU one of decode, prefix, prefill; on a GPU some of decode, skew, single, fp8, page, variant, "
      "append, prefix, quarter, prefill, with commas between, or plan, or sparse, or limits, or ladder (from a simple "
      "kernel to the prefill kernel); or, on both, sweep: shapes drawn at random from what engines run, or cliffs: "
      "shapes at which speed once fell off");
  options.add("seed", flags->seed, "sweep: which shapes are drawn");
  options.add("cases", flags->cases, "sweep: how many");
  options.add_flag("alternatives", flags->alternatives,
                   "sweep on a GPU: also time the other schedules, and prefixes unshared; the best stands as the peer");
  options.add("only", flags->only,
              "GPU: run the cases alone whose name holds this, or one of these, with commas between");
  options.add_flag("once", flags->once, "GPU: launch each case once and time nothing, for a profiler");
  options.add("layout", flags->layout, "GPU: pages as NHD or HND");
  options.add_flag("list", flags->list, "Print the GPU cases of the suites as JSON and end");
  options.add("threads", flags->threads, "Threads; 0: what the cgroup allows");
  options.add("simd", flags->simd, "avx512, avx2 or scalar; empty: the best there is");
  options.add("products", flags->products,
              "bf16 (the default of the engine: queries and weights may be rounded) or f32");
  options.add("page", flags->page, "CPU: tokens a page");
  options.add("repeats", flags->repeats, "Calls behind each time; the median is shown. 0: 7 on the CPU, 25 on a GPU");
  options.add("kv-gb", flags->kv_gb, "CPU: gigabytes of KV that a decode case reads at least");
  options.add("read-gb", flags->read_gb, "CPU: gigabytes that the plain readers read");
  options.add("peers", flags->peers, "CPU: times of peers, as bench/peers/attention_cpu.py writes them");
  options.add("json", flags->json, "Write the rows as JSON here; - is stdout");
  options.examples(
      "  fovea bench attention\n  fovea bench attention --suite decode --json - | jq .rows\n"
      "  fovea bench attention --device cuda:0 --suite decode,skew,single\n"
      "  fovea bench attention --device cuda:0 --suite sweep --seed 7 --cases 300 --json sweep.json");
  return [flags] {
    const Status status = run(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
