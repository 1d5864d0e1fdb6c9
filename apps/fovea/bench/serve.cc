// `fovea bench serve`: load on an OpenAI-compatible server, ours or another one's: closed loop (N clients that ask
// again at once) and open loop (Poisson arrivals). Without --url it starts a `fovea serve` of its own and also measures
// start and idling.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/quote.h"
#include "base/status.h"
#include "bench/report.h"
#include "client/api_client.h"
#include "client/child_server.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "machine/machine.h"

namespace fovea::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct BenchState {
  EngineFlags engine;
  std::string url, json;
  std::vector<std::int32_t> concurrency = {1, 8};
  std::vector<std::string> rates;  // requests a second
  std::int32_t requests = 32;      // of one case
  std::int32_t prompt_tokens = 512;
  std::int32_t shared_tokens = 0;  // of them the same in every prompt
  std::int32_t max_tokens = 64;
  std::uint64_t seed = 0;
  double idle_seconds = 5.0;
};

// The smallest value that at least `share` of them do not exceed.
double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  const std::size_t rank = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end());
  return values[rank];
}

// Bodies with prompts of random tokens, so that the length is exact and nothing is cached but what is meant to be.
class Prompts {
 public:
  Prompts(const BenchState& state, std::int32_t vocab_size)
      : state_(state), random_(state.seed), token_(16, std::max(17, vocab_size - 1)) {
    for (std::int32_t i = 0; i < state.shared_tokens; ++i) shared_.push_back(token_(random_));
  }
  std::string next() {
    std::vector<std::int32_t> prompt = shared_;
    while (static_cast<std::int32_t>(prompt.size()) < state_.prompt_tokens) prompt.push_back(token_(random_));
    return json{{"prompt", prompt}, {"max_tokens", state_.max_tokens},
                {"temperature", 0}, {"ignore_eos", true},
                {"stream", true},   {"stream_options", {{"include_usage", true}}}}
        .dump();
  }

 private:
  const BenchState& state_;
  std::mt19937_64 random_;
  std::uniform_int_distribution<std::int32_t> token_;
  std::vector<std::int32_t> shared_;
};

struct LoadResult {
  std::vector<ApiAnswer> answers;
  std::int64_t failed = 0;
  std::string first_error;
  double seconds = 0.0;
};

// Sends every body, `clients` at a time; with a rate, each not before its arrival time.
LoadResult run_load(const server::Url& address, const std::vector<std::string>& bodies, std::int32_t clients,
                    const std::vector<double>& arrivals) {
  LoadResult result;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  Progress progress("bench serve", static_cast<std::int64_t>(bodies.size()));
  const auto begin = Clock::now();
  const auto client_loop = [&] {
    std::unique_ptr<server::HttpClient> client;
    for (std::size_t i = next.fetch_add(1); i < bodies.size(); i = next.fetch_add(1)) {
      if (!arrivals.empty()) {
        std::this_thread::sleep_until(
            begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[i])));
      }
      Result<ApiAnswer> answer = Status(StatusCode::kUnavailable, "not sent");
      if (!client) {
        auto connected = server::HttpClient::connect(address, 600.0);
        if (connected.ok()) client = std::move(*connected);
        if (!connected.ok()) answer = connected.status();
      }
      if (client) answer = stream_request(*client, "/v1/completions", bodies[i]);
      const std::scoped_lock lock(mutex);
      if (answer.ok()) {
        result.answers.push_back(std::move(*answer));
      } else {
        if (result.failed++ == 0) result.first_error = answer.status().message();
        client.reset();
      }
      progress.set(static_cast<std::int64_t>(result.answers.size()) + result.failed);
    }
  };
  std::vector<std::thread> threads;
  for (std::int32_t i = 0; i < clients; ++i) threads.emplace_back(client_loop);
  for (std::thread& thread : threads) thread.join();
  result.seconds = seconds_since(begin);
  return result;
}

void add_percentiles(BenchReport* report, const std::string& name, const char* metric,
                     const std::vector<double>& seconds) {
  for (const auto& [suffix, share] : {std::pair("p50", 0.5), std::pair("p90", 0.9), std::pair("p99", 0.99)}) {
    BenchRow row;
    row.suite = "serve";
    row.name = name;
    row.metric = fmt::format("{}_{}", metric, suffix);
    row.value = percentile(seconds, share) * 1e3;
    row.unit = "ms";
    row.smaller_is_better = true;
    report->add(std::move(row));
  }
}

void add_rate(BenchReport* report, const std::string& name, const char* metric, double value, const char* unit) {
  BenchRow row;
  row.suite = "serve";
  row.name = name;
  row.metric = metric;
  row.value = value;
  row.unit = unit;
  report->add(std::move(row));
}

Status report_load(BenchReport* report, const std::string& name, const LoadResult& result) {
  if (result.answers.empty()) {
    return Status(StatusCode::kUnavailable, fmt::format("{}: every request failed: {}", name, result.first_error));
  }
  std::vector<double> first, between, per_token, total;
  std::int64_t tokens = 0;
  for (const ApiAnswer& answer : result.answers) {
    first.push_back(answer.first_token_s());
    total.push_back(answer.total_s);
    if (answer.seconds_per_token() > 0.0) per_token.push_back(answer.seconds_per_token());
    for (std::size_t i = 1; i < answer.chunk_s.size(); ++i)
      between.push_back(answer.chunk_s[i] - answer.chunk_s[i - 1]);
    tokens += answer.completion_tokens;
  }
  add_percentiles(report, name, "ttft", first);
  add_percentiles(report, name, "itl", between);
  add_percentiles(report, name, "tpot", per_token);
  add_percentiles(report, name, "e2e", total);
  add_rate(report, name, "output", static_cast<double>(tokens) / result.seconds, "tokens/s");
  add_rate(report, name, "requests", static_cast<double>(result.answers.size()) / result.seconds, "1/s");
  add_rate(report, name, "failed", static_cast<double>(result.failed), "requests");
  return {};
}

// Start of the process to its first answer, and the CPU that it then takes while nobody asks.
Result<std::unique_ptr<ChildServer>> start_server(const BenchState& state, BenchReport* report) {
  const auto begin = Clock::now();
  FOVEA_ASSIGN_OR_RETURN(auto child, ChildServer::start(state.engine.arguments()));
  const double listening = seconds_since(begin);
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(child->address()));
  FOVEA_ASSIGN_OR_RETURN(
      server::HttpResponse response,
      client->post("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"The code is 7. What is the code?"}],"max_tokens":8})"));
  if (response.status != 200) return internal_error("the first request failed: {}", response.body);
  const double answered = seconds_since(begin);
  const auto add = [&](const char* metric, double value, const char* unit, double limit) {
    BenchRow row;
    row.suite = "serve";
    row.name = "start";
    row.metric = metric;
    row.value = value;
    row.unit = unit;
    if (limit > 0.0) row.limit = limit;
    row.smaller_is_better = true;
    report->add(std::move(row));
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

Status run_cases(const BenchState& state, const server::Url& address, BenchReport* report) {
  std::int32_t vocab_size = 1000;
  if (auto info = get_body(address, "/server_info"); info.ok()) {
    const json parsed = json::parse(*info, nullptr, false);
    if (parsed.is_object()) vocab_size = parsed.value("vocab_size", vocab_size);
  }
  Prompts prompts(state, vocab_size);
  const auto bodies = [&](std::int32_t count) {
    std::vector<std::string> out;
    for (std::int32_t i = 0; i < count; ++i) out.push_back(prompts.next());
    return out;
  };
  run_load(address, bodies(2), 1, {});  // warm-up
  const std::string shape =
      fmt::format("in {} (shared {}) out {}", state.prompt_tokens, state.shared_tokens, state.max_tokens);
  for (const std::int32_t clients : state.concurrency) {
    const LoadResult result = run_load(address, bodies(std::max(state.requests, clients)), clients, {});
    FOVEA_RETURN_IF_ERROR(report_load(report, fmt::format("closed c={} {}", clients, shape), result));
  }
  std::mt19937_64 random(state.seed + 1);
  for (const std::string& text : state.rates) {
    const double rate = std::atof(text.c_str());
    if (!(rate > 0.0)) return invalid_argument("--rate is {}, expected a number above 0", quote(text));
    std::exponential_distribution<double> gap(rate);
    std::vector<double> arrivals;
    double at = 0.0;
    for (std::int32_t i = 0; i < state.requests; ++i) arrivals.push_back(at += gap(random));
    const LoadResult result = run_load(address, bodies(state.requests), std::min(state.requests, 256), arrivals);
    FOVEA_RETURN_IF_ERROR(report_load(report, fmt::format("poisson {}/s {}", text, shape), result));
  }
  return {};
}

int run_bench(BenchState& state) {
  if (state.requests < 1 || state.prompt_tokens < 1 || state.max_tokens < 1 || state.shared_tokens < 0 ||
      state.shared_tokens > state.prompt_tokens) {
    return fail(
        invalid_argument("--requests, --prompt-tokens and --max-tokens must be at least 1, --shared-tokens "
                         "between 0 and --prompt-tokens"));
  }
  for (const std::int32_t clients : state.concurrency) {
    if (clients < 1 || clients > 4096) return fail(invalid_argument("--concurrency is {}, expected 1..4096", clients));
  }
  BenchReport report;
  const Machine machine = read_machine();
  report.set_machine("cpu", machine.cpu);
  report.set_machine("threads", static_cast<double>(machine.threads));
  std::unique_ptr<ChildServer> child;
  Result<server::Url> address = server::parse_url(state.url);
  if (state.url.empty()) {
    auto started = start_server(state, &report);
    if (!started.ok()) return fail(started.status());
    child = std::move(*started);
    address = child->address();
  }
  if (!address.ok()) return fail(address.status());
  if (Status status = run_cases(state, *address, &report); !status.ok()) return fail(status);
  const Status status = report.emit(state.json);
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace

RunFunction declare_bench_serve(Options& options) {
  auto state = std::make_shared<BenchState>();
  options.add("url", state->url, "Server to load, http://HOST:PORT; empty: start one");
  options.add("concurrency", state->concurrency, "Closed loop: clients at a time");
  options.add("rate", state->rates, "Open loop: Poisson arrivals a second");
  options.add("requests", state->requests, "Requests of each case");
  options.add("prompt-tokens", state->prompt_tokens, "Tokens of a prompt");
  options.add("shared-tokens", state->shared_tokens, "Of them, the same in every prompt");
  options.add("max-tokens", state->max_tokens, "Tokens of an answer");
  options.add("seed", state->seed, "Seed of prompts and arrivals");
  options.add("idle-seconds", state->idle_seconds, "How long to watch the idle server");
  options.add("json", state->json, "Write the rows as JSON here; - is stdout");
  state->engine.declare(options);
  options.examples(
      "  fovea bench serve\n"
      "  fovea bench serve --concurrency 1,16,64 --prompt-tokens 4096 --shared-tokens 4000 --json -\n"
      "  fovea bench serve --url http://127.0.0.1:8000 --rate 2 --rate 8 --requests 200");
  return [state] { return run_bench(*state); };
}

}  // namespace fovea::app
