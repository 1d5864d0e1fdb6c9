// `fovea bench serve`: load on an engine, in this process (--in-process) or through HTTP: on a server of its own, whose
// start and idling it measures too, or on another one (--url). What is sent: workload.h; how it is judged: figures.h.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "base/quote.h"
#include "base/status.h"
#include "bench/read_rate.h"
#include "bench/report.h"
#include "bench/serve/figures.h"
#include "bench/serve/load.h"
#include "bench/serve/picture.h"
#include "bench/serve/timeline.h"
#include "bench/serve/workload.h"
#include "client/child_server.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "machine/machine.h"

namespace fovea::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastRate = 1e-6;  // a second
constexpr double kMostRequests = 1e6;
constexpr std::int32_t kLoggedSteps = 64, kDrawnSteps = 6;

struct BenchState {
  EngineFlags engine;
  std::string url, trace, json, svg, timeline;
  bool in_process = false;
  std::vector<std::string> workloads, rates;
  std::vector<std::int32_t> concurrency, choices = {1};
  WorkloadOptions load;
  Targets targets;
  double read_rate = 0.0;     // GB/s
  double compute_rate = 0.0;  // TFLOP/s
  double idle_seconds = 5.0;
};

// How the requests of a case come.
struct Arrivals {
  std::string name;
  std::int32_t clients = 0;
  double rate = 0.0;  // a second; 0: by the trace, infinite: all at once
};

Result<std::vector<Arrivals>> read_arrivals(const BenchState& state, bool timed) {
  std::vector<Arrivals> out;
  for (const std::int32_t clients : state.concurrency) {
    if (clients < 1 || clients > 4096) return invalid_argument("--concurrency is {}, expected 1..4096", clients);
    out.push_back({fmt::format("closed c={}", clients), clients, 0.0});
  }
  for (const std::string& text : state.rates) {
    char* end = nullptr;
    const double rate = text == "trace" ? 0.0 : std::strtod(text.c_str(), &end);
    if (text != "trace" && (end != text.c_str() + text.size() || !(rate >= kLeastRate))) {
      return invalid_argument("--rate is {}, expected a number from {} on, inf (all at once) or trace", quote(text),
                              kLeastRate);
    }
    if (text == "trace" && !timed) {
      return invalid_argument("--rate trace needs --trace, or --workload conversation or agent: others have no times");
    }
    out.push_back({rate == 0.0        ? "as in the trace"
                   : std::isinf(rate) ? "all at once"
                                      : fmt::format("poisson {}/s", text),
                   0, rate});
  }
  if (!out.empty()) return out;
  if (timed) return std::vector<Arrivals>{{"as in the trace", 0, 0.0}};
  return std::vector<Arrivals>{{"closed c=1", 1, 0.0}, {"closed c=8", 8, 0.0}};
}

Status check_values(const BenchState& state) {
  const WorkloadOptions& load = state.load;
  const auto least = [](const char* name, double value, double low) {
    return value >= low && value < 1e9 ? ok_status()
                                       : invalid_argument("--{} is {}, expected {} or more", name, value, low);
  };
  if (load.requests < 1 || load.requests > kMostRequests) {
    return invalid_argument("--requests is {}, expected 1..{:.0f}", load.requests, kMostRequests);
  }
  FOVEA_RETURN_IF_ERROR(least("prompt-tokens", load.prompt_tokens, 1));
  FOVEA_RETURN_IF_ERROR(least("max-tokens", load.max_tokens, 1));
  FOVEA_RETURN_IF_ERROR(least("shared-tokens", load.shared_tokens, 0));
  FOVEA_RETURN_IF_ERROR(least("streams", load.streams, 1));
  FOVEA_RETURN_IF_ERROR(least("arriving-tokens", load.arriving_tokens, 1));
  FOVEA_RETURN_IF_ERROR(least("ttft-ms", state.targets.ttft_ms, 0));
  FOVEA_RETURN_IF_ERROR(least("tpot-ms", state.targets.tpot_ms, 0));
  FOVEA_RETURN_IF_ERROR(least("read-rate", state.read_rate, 0));
  FOVEA_RETURN_IF_ERROR(least("compute-rate", state.compute_rate, 0));
  FOVEA_RETURN_IF_ERROR(least("idle-seconds", state.idle_seconds, 0));
  if (load.shared_tokens > load.prompt_tokens) {
    return invalid_argument("--shared-tokens is {}, expected at most --prompt-tokens {}", load.shared_tokens,
                            load.prompt_tokens);
  }
  if (!(load.length_scale > 0.0 && load.length_scale <= 100.0)) {
    return invalid_argument("--length-scale is {}, expected above 0 and at most 100", load.length_scale);
  }
  for (const std::int32_t n : state.choices) {
    if (n < 1 || n > 128) return invalid_argument("--choices is {}, expected 1..128", n);
  }
  if (!state.trace.empty() && !state.workloads.empty()) {
    return invalid_argument("--trace and --workload both say what is sent; give one of them");
  }
  if (state.in_process && !state.url.empty()) {
    return invalid_argument("--url is a server's, and --in-process loads an engine without one; give one of them");
  }
  if (!state.json.empty() && state.svg == "-") return invalid_argument("with --svg on stdout there is no --json");
  if (!state.timeline.empty() && !state.in_process) {
    return invalid_argument("--timeline shows the steps of an engine of this process: give --in-process too");
  }
  if (state.timeline == "-") return invalid_argument("--timeline is -, expected a file: the figures are on stdout");
  FOVEA_RETURN_IF_ERROR(check_output(state.json));
  FOVEA_RETURN_IF_ERROR(check_output(state.timeline));
  return check_output(state.svg);
}

// Start of the process to its first answer, and the CPU that it then takes while nobody asks.
Result<std::unique_ptr<ChildServer>> start_server(const BenchState& state, BenchReport* report) {
  const auto begin = Clock::now();
  FOVEA_ASSIGN_OR_RETURN(auto child, ChildServer::start(state.engine.arguments()));
  const double listening = seconds_since(begin);
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(child->address()));
  FOVEA_ASSIGN_OR_RETURN(server::HttpResponse response,
                         client->post("/v1/completions", R"({"prompt":[20,21,22,23],"max_tokens":8,"temperature":0})"));
  if (response.status != 200) return internal_error("the first request failed: {}", response.body);
  const double answered = seconds_since(begin);
  const auto add = [&](const char* metric, double value, const char* unit, double limit) {
    report->add({"serve", "start", metric, value, unit, limit > 0.0 ? std::optional(limit) : std::nullopt, "",
                 std::nullopt, true});
  };
  add("listening", listening, "s", 0.0);
  add("first_answer", answered, "s", 0.5);
  const double cpu = child->cpu_seconds();
  const auto idle_begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(state.idle_seconds));
  add("idle_cpu", (child->cpu_seconds() - cpu) / seconds_since(idle_begin) * 100.0, "% of a core", 1.0);
  add("resident", static_cast<double>(child->peak_bytes()) / (1 << 20), "MiB", 0.0);
  return child;
}

// Nothing where the engine is not ours, or reads less than all: then no floor is known.
Result<Roofline> find_roofline(const BenchState& state, const Engine* engine) {
  Roofline out;
  const EngineOptions options = state.engine.resolved();
  if (engine == nullptr || options.sparse != "off" || options.streaming != "off") return out;
  const EngineStats stats = engine->stats();
  out.weight_bytes = static_cast<double>(stats.weight_bytes);
  out.parameters = out.weight_bytes / (options.weight_dtype == "fp8" ? 1.0 : 2.0);
  out.token_kv_bytes = static_cast<double>(stats.dense_token_bytes * dtype_bits(options.kv_dtype)) / 16.0;
  out.compute_rate = 1e12 * state.compute_rate;
  out.read_rate = 1e9 * state.read_rate;
  if (out.read_rate > 0.0 || options.device != "cpu") return out;
  FOVEA_ASSIGN_OR_RETURN(out.read_rate, measure_read_rate(std::clamp(out.weight_bytes, 1e6, 4e9)));
  return out;
}

// A load of each name, or of the trace.
struct Case {
  std::string name;
  std::vector<Arrivals> arrivals;
};

Result<std::vector<Case>> read_cases(const BenchState& state) {
  std::vector<std::string> names = state.workloads;
  if (names.empty()) names.emplace_back(state.trace.empty() ? "random" : "trace");
  std::vector<Case> cases;
  for (const std::string& name : names) {
    if (state.trace.empty()) FOVEA_RETURN_IF_ERROR(check_workload(name));
    const bool timed = !state.trace.empty() || name == "conversation" || name == "agent";
    FOVEA_ASSIGN_OR_RETURN(std::vector<Arrivals> arrivals, read_arrivals(state, timed));
    const bool closed =
        std::any_of(arrivals.begin(), arrivals.end(), [](const Arrivals& how) { return how.clients > 0; });
    if (name == "interrupted" && closed) {
      return invalid_argument("--workload interrupted is about prompts that arrive: give --rate, no --concurrency");
    }
    cases.push_back({name, std::move(arrivals)});
  }
  return cases;
}

Status run_cases(const BenchState& state, const std::vector<Case>& cases, const std::vector<TraceRequest>& trace,
                 LoadTarget& target, BenchReport* report, std::vector<PicturedLoad>* pictures) {
  FOVEA_ASSIGN_OR_RETURN(const Roofline roofline, find_roofline(state, target.engine()));
  if (roofline.read_rate > 0.0) report->set_machine("read_gb_per_s", roofline.read_rate / 1e9);
  WorkloadOptions load = state.load;
  // Kernels are loaded, and the step of one stream is recorded.
  WorkloadOptions warm;
  warm.requests = 2;
  warm.prompt_tokens = std::min(load.prompt_tokens, 256);
  warm.max_tokens = std::min(load.max_tokens, 8);
  FOVEA_ASSIGN_OR_RETURN(const auto first,
                         make_workload("random", {}, warm, target.vocab_size(), target.max_context()));
  target.run(first, {1, 1});
  for (const auto& [name, arrivals] : cases) {
    for (const Arrivals& how : arrivals) {
      for (const std::int32_t choices : state.choices) {
        ++load.seed;  // what one case left in a cache helps no other
        load.requests = std::max(state.load.requests, how.clients);
        FOVEA_ASSIGN_OR_RETURN(std::vector<LoadRequest> requests,
                               make_workload(name, trace, load, target.vocab_size(), target.max_context()));
        if (std::isinf(how.rate)) {
          for (LoadRequest& request : requests) request.arrival_s = 0.0;
        } else if (how.rate > 0.0) {
          set_poisson_arrivals(&requests, how.rate, load.seed);
        }
        std::string title = name;
        if (name == "random") {
          title = fmt::format("in {} (shared {}) out {}", load.prompt_tokens, load.shared_tokens, load.max_tokens);
        } else if (name == "interrupted") {
          title =
              fmt::format("{} streams of {} interrupted by {}", load.streams, load.prompt_tokens, load.arriving_tokens);
        }
        if (choices > 1) title += fmt::format(" n={}", choices);
        title = fmt::format("{} {}", how.name, title);
        target.forget_prefixes();
        LoadResult result = target.run(requests, {how.clients, choices});
        FOVEA_RETURN_IF_ERROR(add_figures(report, title, requests, result, state.targets, roofline));
        pictures->push_back({std::move(title), std::move(result)});
      }
    }
  }
  return ok_status();
}

Status run_bench(BenchState& state) {
  FOVEA_RETURN_IF_ERROR(check_values(state));
  // Before a model is loaded: that may take minutes.
  FOVEA_ASSIGN_OR_RETURN(const std::vector<Case> cases, read_cases(state));
  std::vector<TraceRequest> trace;
  if (!state.trace.empty()) {
    std::string text;
    FOVEA_RETURN_IF_ERROR(read_input(state.trace, &text));
    FOVEA_ASSIGN_OR_RETURN(trace, parse_trace(text, shorten(state.trace)));
  }
  BenchReport report;
  const Machine machine = read_machine();
  report.set_machine("cpu", machine.cpu);
  report.set_machine("threads", static_cast<double>(machine.threads));
  std::unique_ptr<ChildServer> child;
  std::unique_ptr<LoadTarget> target;
  if (state.in_process) {
    if (!state.timeline.empty()) state.engine.options.step_log = kLoggedSteps;
    FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, state.engine.create());
    report.set_machine("model", engine->model_name());
    target = engine_target(std::move(engine), !state.timeline.empty());
  } else {
    Result<server::Url> address = server::parse_url(state.url);
    if (state.url.empty()) {
      FOVEA_ASSIGN_OR_RETURN(child, start_server(state, &report));
      address = child->address();
    }
    if (!address.ok()) return address.status();
    FOVEA_ASSIGN_OR_RETURN(target, http_target(*address));
  }
  std::vector<PicturedLoad> pictures;
  FOVEA_RETURN_IF_ERROR(run_cases(state, cases, trace, *target, &report, &pictures));
  if (!state.timeline.empty()) {
    const std::vector<StepSpan> steps = target->steps();
    report.set_machine("device_idle_share", idle_share(steps));
    FOVEA_RETURN_IF_ERROR(
        write_output(state.timeline, draw_timeline(steps, kDrawnSteps, "Steps while most requests were running")));
  }
  if (!state.svg.empty()) FOVEA_RETURN_IF_ERROR(write_output(state.svg, draw_loads(pictures)));
  return state.svg == "-" ? ok_status() : report.emit(state.json);
}

}  // namespace

RunFunction declare_bench_serve(Options& options) {
  auto state = std::make_shared<BenchState>();
  options.section("Who is loaded");
  options.add("url", state->url, "Server to load, http://HOST:PORT; empty: start one");
  options.add_flag("in-process", state->in_process, "Load an engine of this process, without HTTP");
  options.section("What is sent");
  options.add("workload", state->workloads,
              "random: --prompt-tokens and --max-tokens; sharegpt: lengths of chats; long: 4k to 32k; conversation and "
              "agent: traces with shared prefixes, made from the seed; interrupted: running answers and prompts that "
              "arrive (repeatable)");
  options.add("trace", state->trace,
              "Trace to send, Mooncake's JSONL: timestamp, input_length, output_length, hash_ids");
  options.add("requests", state->load.requests, "Requests of each case; of a trace: the first so many");
  options.add("prompt-tokens", state->load.prompt_tokens, "random, interrupted: tokens of a prompt");
  options.add("shared-tokens", state->load.shared_tokens, "random: of them, the same in every prompt");
  options.add("max-tokens", state->load.max_tokens, "random, interrupted: tokens of an answer");
  options.add("choices", state->choices, "Answers to each prompt that are generated beside each other");
  options.add("streams", state->load.streams, "interrupted: answers that run");
  options.add("arriving-tokens", state->load.arriving_tokens, "interrupted: tokens of a prompt that arrives");
  options.add("length-scale", state->load.length_scale, "All lengths times this; what is shared stays shared");
  options.add("seed", state->load.seed, "Seed of prompts, lengths and arrivals");
  options.section("How it comes, and what is asked of it");
  options.add("concurrency", state->concurrency, "Closed loop: clients at a time, each asks again at once [1,8]");
  options.add("rate", state->rates,
              "Open loop: Poisson arrivals a second; inf: all at once; trace: as recorded (repeatable)");
  options.add("ttft-ms", state->targets.ttft_ms, "Goodput counts requests whose first token came that soon; 0: any");
  options.add("tpot-ms", state->targets.tpot_ms, "..., and whose further tokens took that long on average; 0: any");
  options.add(
      "read-rate", state->read_rate,
      "With --in-process: GB/s that the device's memory is read with at most, for the share of the roofline; 0: "
      "measured, where the device is the CPU");
  options.add("compute-rate", state->compute_rate, "..., and TFLOP/s of its products; 0: not counted");
  options.add("idle-seconds", state->idle_seconds, "How long to watch a server of its own idle");
  options.add("json", state->json, "Write the rows as JSON here; - is stdout");
  options.add("svg", state->svg, "Draw each case's requests over time; - is stdout");
  options.add("timeline", state->timeline, "With --in-process: draw what host and device did in some steps");
  state->engine.options.max_queued = 65536;  // the load is the bench's to limit
  state->engine.declare(options);
  options.examples(
      "  fovea bench serve\n"
      "  fovea bench serve --concurrency 1,16,64 --prompt-tokens 4096 --shared-tokens 4000 --json -\n"
      "  fovea bench serve --in-process --workload agent --rate 2 --ttft-ms 500 --tpot-ms 30 --svg load.svg\n"
      "  fovea bench serve --url http://127.0.0.1:8000 --trace conversation_trace.jsonl --requests 200");
  return [state] {
    const Status status = run_bench(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
