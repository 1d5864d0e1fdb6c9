// `fovea bench attention`: its options. The CPU's suites are in bench/attention_cpu.cc, a GPU's in
// bench/attention_cuda.cc.
#include "bench/attention.h"

#include <cstdio>
#include <memory>

#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "workload/attention_cases.h"

namespace fovea::app {
namespace {

Status run(const BenchAttentionFlags& flags) {
  if (flags.list) {
    FOVEA_ASSIGN_OR_RETURN(const std::vector<MeasuredCase> cases, measured_cases(flags.suite));
    std::puts(measured_cases_json(cases).c_str());
    return ok_status();
  }
  if (flags.repeats < 0 || flags.page < 1) return invalid_argument("--page must be positive, --repeats not negative");
  BenchAttentionFlags chosen = flags;
  if (chosen.repeats == 0) chosen.repeats = flags.device == "cpu" ? 7 : 25;
  return flags.device == "cpu" ? bench_attention_cpu(chosen) : bench_attention_cuda(chosen);
}

}  // namespace

RunFunction declare_bench_attention(Options& options) {
  auto flags = std::make_shared<BenchAttentionFlags>();
  options.add("device", flags->device, "cpu or cuda:N");
  options.add(
      "suite", flags->suite,
      "all; on the CPU one of decode, prefix, prefill; on a GPU some of decode, skew, single, fp8, page, variant, "
      "append, prefix, quarter, with commas between, or plan, or sparse, or limits");
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
      "  fovea bench attention --device cuda:0 --suite decode,skew,single");
  return [flags] {
    const Status status = run(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
