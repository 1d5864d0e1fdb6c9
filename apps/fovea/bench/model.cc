// `fovea bench model`: streams through the whole engine: prefill seconds and decode tokens a second at several context
// lengths and numbers of streams, beside the time it takes to read as many bytes as the weights and the KV, and beside
// peers measured by bench/peers/needle_cpu.py.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/read_rate.h"
#include "bench/report.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "machine/machine.h"
#include "model_hint.h"

namespace fovea::app {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchModelState {
  EngineFlags engine;
  std::vector<std::int32_t> contexts = {0, 8192, 32768};
  std::vector<std::int32_t> batches = {1};
  std::int32_t steps = 64;
  std::int32_t repeats = 3;
  double read_gb = 4.0;
  double read_rate = 0.0;  // GB/s
  std::string peers;
  std::string json;
};

// What streams that came together took.
struct StreamTimes {
  double first_token = 0.0;  // seconds from submit to the first token, of the first of them
  double per_token = 0.0;    // median seconds between tokens
  double cpu = 0.0;          // seconds of all threads, a token on average
};

std::vector<std::int32_t> random_prompt(std::int32_t tokens, std::int32_t vocab, std::uint64_t seed) {
  PhiloxRng rng(seed);
  std::vector<std::int32_t> prompt;
  const std::uint32_t first = 16;  // past the special tokens
  for (std::int32_t i = 0; i < std::max(tokens, 1); ++i) {
    prompt.push_back(static_cast<std::int32_t>(first + rng.next_below(static_cast<std::uint32_t>(vocab) - first)));
  }
  return prompt;
}

// Of streams over prompts of their own, all there before the first decodes alone: gaps between tokens are those of the
// stream that began last.
Result<StreamTimes> time_streams(Engine& engine, std::int32_t context, std::int32_t batch, std::int32_t steps) {
  std::mutex mutex;
  std::condition_variable done_signal;
  std::int32_t done = 0;
  Status error;
  std::vector<std::vector<Clock::time_point>> times(static_cast<std::size_t>(batch));
  std::clock_t cpu_first = 0;
  std::clock_t cpu_last = 0;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < times.size(); ++i) {
    GenerateRequest request;
    request.prompt = random_prompt(context, engine.vocab_size(), i + 1);
    request.sampling.temperature = 0.0f;
    // Those that begin first wait for the last.
    request.sampling.max_tokens = steps + (batch > 1 ? std::max(context / 64, 1) * batch / 16 : 0);
    request.sampling.ignore_eos = true;
    auto submitted = engine.submit(std::move(request), [&, i](const GenerationEvent& event) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!event.tokens.empty()) {
        times[i].push_back(Clock::now());
        cpu_last = std::clock();
        if (times[i].size() == 1) cpu_first = cpu_last;
      }
      if (event.finish == FinishReason::kNone) return;
      if (!event.error.ok()) error = event.error;
      ++done;
      done_signal.notify_one();
    });
    if (!submitted.ok()) return submitted.status();
  }
  std::unique_lock<std::mutex> lock(mutex);
  done_signal.wait(lock, [&] { return done == batch; });
  if (!error.ok()) return error;
  std::size_t last = 0, first = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i].size() < 2) return internal_error("{} tokens came back, expected {}", times[i].size(), steps);
    if (times[i][0] > times[last][0]) last = i;
    if (times[i][0] < times[first][0]) first = i;
  }
  Clock::time_point end = times[last].back();  // from here on streams end
  for (const auto& stream : times) end = std::min(end, stream.back());
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times[last].size() && times[last][i] <= end; ++i) {
    gaps.push_back(std::chrono::duration<double>(times[last][i] - times[last][i - 1]).count());
  }
  if (gaps.empty()) return internal_error("no step had all {} streams; ask for more --steps", batch);
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
  const double cpu = static_cast<double>(cpu_last - cpu_first) / CLOCKS_PER_SEC;
  return StreamTimes{std::chrono::duration<double>(times[first][0] - start).count(), gaps[gaps.size() / 2],
                     cpu / static_cast<double>(times[last].size() - 1)};
}

struct PeerTimes {
  double prefill = 0.0;  // seconds, least of the peer's dtypes
  double decode = 0.0;   // tokens a second, most of them
};

// By (peer, context), from the file that bench/peers/needle_cpu.py writes.
Result<std::map<std::pair<std::string, std::int32_t>, PeerTimes>> read_peers(const std::string& path) {
  std::map<std::pair<std::string, std::int32_t>, PeerTimes> peers;
  if (path.empty()) return peers;
  std::string text;
  FOVEA_RETURN_IF_ERROR(read_input(path, &text));
  FOVEA_ASSIGN_OR_RETURN(const Json document, parse_json(text, path));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader root, JsonReader::create(document, shorten(path)));
  const Json* const rows = root.find("rows");
  if (rows == nullptr || !rows->is_array()) {
    return invalid_argument("{} is no list; expected what bench/peers/needle_cpu.py writes", root.path("rows"));
  }
  for (std::size_t i = 0; i < rows->size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const JsonReader row,
                           JsonReader::create((*rows)[i], fmt::format("{}[{}]", root.path("rows"), i)));
    FOVEA_ASSIGN_OR_RETURN(const std::string peer, row.string("peer"));
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t context, row.integer("context", 0, 1 << 30));
    FOVEA_ASSIGN_OR_RETURN(const double prefill, row.number_or("prefill_s", 0.0));
    FOVEA_ASSIGN_OR_RETURN(const double decode, row.number_or("decode_tokens_per_s", 0.0));
    PeerTimes& times = peers[{peer, static_cast<std::int32_t>(context)}];
    times.prefill = times.prefill == 0.0 ? prefill : std::min(times.prefill, prefill);
    times.decode = std::max(times.decode, decode);
  }
  return peers;
}

Status run_bench(BenchModelState& s) {
  if (s.steps < 2 || s.repeats < 1 || !(s.read_gb > 0.0)) {
    return invalid_argument("--steps must be at least 2, --repeats at least 1, --read-gb positive");
  }
  FOVEA_RETURN_IF_ERROR(check_output(s.json));
  // Before seconds go into measuring the machine.
  if (const std::string& model = s.engine.options.model; !model.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(model, error)) {
      return with_model_hint(not_found("cannot open {}: No such file or directory", shorten(model)), model);
    }
  }
  FOVEA_ASSIGN_OR_RETURN(const auto peers, read_peers(s.peers));
  // Of the CPU's memory it is measured here; other devices' is given.
  const bool measured = s.read_rate <= 0.0 && s.engine.options.device == "cpu";
  double read_rate = 1e9 * s.read_rate;
  if (measured) {
    FOVEA_ASSIGN_OR_RETURN(read_rate, measure_read_rate(s.read_gb * 1e9));
  }
  s.engine.options.prefix_cache = false;  // each repeat computes its prompt
  FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, s.engine.create());
  for (const std::int32_t context : s.contexts) {
    if (context < 0 || context > engine->max_context() - s.steps) {
      return invalid_argument("context {} and {} steps do not fit the model's {} tokens", context, s.steps,
                              engine->max_context());
    }
  }
  const EngineStats stats = engine->stats();

  BenchReport report;
  const Machine machine = read_machine();
  report.set_machine("cpu", machine.cpu);
  report.set_machine("threads", static_cast<double>(machine.threads));
  report.set_machine("read_gb_per_s", read_rate / 1e9);
  report.set_machine("weight_mb", static_cast<double>(stats.weight_bytes) / 1e6);
  report.set_machine("dense_kv_bytes_per_token", static_cast<double>(stats.dense_token_bytes));
  std::vector<std::pair<std::int32_t, std::int32_t>> cases;
  for (const std::int32_t context : s.contexts) {
    for (const std::int32_t batch : s.batches) cases.emplace_back(context, batch);
  }
  for (const auto& [context, batch] : cases) {
    StreamTimes best{1e30, 1e30, 1e30};
    for (std::int32_t repeat = 0; repeat < s.repeats; ++repeat) {
      FOVEA_ASSIGN_OR_RETURN(const StreamTimes times, time_streams(*engine, context, batch, s.steps));
      best.first_token = std::min(best.first_token, times.first_token);
      best.per_token = std::min(best.per_token, times.per_token);
      best.cpu = std::min(best.cpu, times.cpu);
    }
    const std::string name = fmt::format("{}, {}context {}", engine->model_name(),
                                         batch > 1 ? fmt::format("{} streams, ", batch) : "", context);
    // Of the last step, which reads the most: weights, K and V as the plans read them, statistics scored.
    const EngineStats after = engine->stats();
    // Streams end one after the other: of several, what all of them have in bf16.
    const double kv = batch == 1 ? static_cast<double>(after.step_kv_bytes)
                                 : static_cast<double>(stats.dense_token_bytes * batch) * (context + s.steps);
    const auto bytes = static_cast<double>(stats.weight_bytes) + kv;
    double rate = read_rate;
    if (measured && bytes < s.read_gb * 1e9) {
      FOVEA_ASSIGN_OR_RETURN(rate, measure_read_rate(bytes));
    }
    const auto streams = static_cast<double>(batch);
    const std::optional<double> limit = rate > 0.0 ? std::optional(streams * rate / bytes) : std::nullopt;
    BenchRow decode{"model", name, "decode", streams / best.per_token, "tokens/s", limit, "", std::nullopt};
    BenchRow prefill{"model", name, "prefill", best.first_token, "s", std::nullopt, "", std::nullopt, true};
    report.add({"model", name, "step", 1e3 * best.per_token, "ms",
                rate > 0.0 ? std::optional(1e3 * bytes / rate) : std::nullopt, "", std::nullopt, true});
    if (batch == 1 && context == *std::max_element(s.contexts.begin(), s.contexts.end())) {
      // Of one request: tokens that were computed, in whole pages, against the same in bf16, every head keeping all.
      const std::int32_t page = s.engine.options.page_tokens;
      const std::int32_t pages = (std::max(context, 1) + s.steps - 1 + page - 1) / page;
      const auto dense = static_cast<double>(stats.dense_token_bytes * pages * page);
      const auto most = static_cast<double>(after.kv_bytes_peak);
      report.add({"model", name, "kv_high_water", most, "bytes", std::nullopt, "", std::nullopt, true});
      report.add({"model", name, "kv_saved", dense / most, "x of bf16 dense", std::nullopt, "", std::nullopt});
    }
    // What a busy machine does not change as much as time. Threads that wait for the next round of work count too.
    report.add({"model", name, "decode_cpu", 1e3 * best.cpu, "ms", std::nullopt, "", std::nullopt, true});
    bool beside_peer = false;
    for (const auto& [key, times] : peers) {
      if (key.second != context || batch > 1) continue;
      beside_peer = true;
      decode.peer = prefill.peer = key.first;
      decode.peer_value = times.decode;
      prefill.peer_value = times.prefill;
      report.add(decode);
      if (context > 0) report.add(prefill);
    }
    if (beside_peer) continue;
    report.add(decode);
    if (context > 0) report.add(prefill);
  }
  return report.emit(s.json);
}

}  // namespace

RunFunction declare_bench_model(Options& options) {
  auto state = std::make_shared<BenchModelState>();
  state->engine.options.itl_target_ms = 0.0f;  // nobody reads along, and figures do not depend on the clock
  state->engine.declare(options);
  options.add("contexts", state->contexts, "Tokens before the first decoded one");
  options.add("batches", state->batches, "Streams at a time");
  options.add("steps", state->steps, "Tokens to decode at each context");
  options.add("repeats", state->repeats, "Streams at each context; the best is shown");
  options.add("read-gb", state->read_gb, "Gigabytes that the plain readers read");
  options.add("read-rate", state->read_rate,
              "GB/s that the device's memory is read with at most; 0: measured, where the device is the CPU");
  options.add("peers", state->peers, "Times of peers, as bench/peers/needle_cpu.py writes them");
  options.add("json", state->json, "Write the rows as JSON here; - is stdout");
  options.examples(
      "  fovea bench model\n  fovea bench model --contexts 0,8192 --peers peers.json\n"
      "  fovea bench model --device cuda:0 --model MODEL --batches 1,8,64 --contexts 1024 --read-rate 4660");
  return [state] {
    const Status status = run_bench(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
