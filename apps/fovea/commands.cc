// The table of commands. A new command is one line here, one in commands.h and a file of its own.
#include "commands.h"

namespace fovea::app {

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> table = {
      {"serve", "OpenAI-compatible server", declare_serve},
      {"generate", "Answer once: a prompt, or a question about a file", declare_generate},
      {"chat", "Converse in the terminal", declare_chat},
      {"demo", "Answer questions about a long document through a real server", declare_demo},
      {"bench serve", "Load a server or an engine: latencies, throughput, goodput, share of the roofline",
       declare_bench_serve},
      {"eval needle", "Count right answers about long documents, by length and depth", declare_eval_needle},
      {"eval compare", "Compare answers with page selection to those without, on your own text", declare_eval_compare},
      {"profile heads", "Find the KV heads that need sinks and recent tokens only", declare_profile_heads},
      {"profile keys", "Learn which channels of a model's keys tell the pages that --sparse fovea reads",
       declare_profile_keys},
      {"bench attention", "Time attention beside the limits of this machine", declare_bench_attention},
      {"bench ops", "Time matrix products beside the limits of this machine", declare_bench_ops},
      {"bench model", "One stream through the engine: prefill and decode, beside the limit and peers",
       declare_bench_model},
      {"bench plan", "Time planning, and judge the plans in the cost model", declare_bench_plan},
      {"plan explain", "Show the plan of a batch: in words, as tables, as a picture", declare_plan_explain},
      {"warmup", "Compile a model's GPU kernels ahead, with or without a GPU", declare_warmup},
      {"completion", "Print a script that completes commands and options in a shell", declare_completion},
      {"doctor", "Say what this machine can run, and if not, why", declare_doctor},
  };
  return table;
}

}  // namespace fovea::app
