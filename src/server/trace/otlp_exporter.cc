#include "server/trace/otlp_exporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "fovea/version.h"
#include "server/http/client.h"
#include "server/trace/request_spans.h"

namespace fovea::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostABatch = 512;
constexpr auto kBatchTime = std::chrono::milliseconds(500);  // that a request may wait for others
constexpr int kTries = 4;
constexpr auto kFirstPause = std::chrono::milliseconds(500);  // doubled at each try
constexpr auto kFarewell = std::chrono::seconds(2);

// Whether the same bytes may be taken later, as OTLP has it.
bool worth_another_try(std::int32_t status) { return status == 429 || status == 502 || status == 503 || status == 504; }

}  // namespace

struct OtlpExporter::State {
  struct Ended {
    RequestRecord record;
    TraceContext context;  // without ids where the trace begins here
    std::int64_t end_ns = 0;
  };

  OtlpOptions options;
  Url url;
  std::string path;  // of the endpoint, with /v1/traces
  std::atomic<std::uint64_t> sent{0}, dropped{0};

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Ended> waiting;
  bool stop = false, over = false;

  // The rest is the thread's.
  std::unique_ptr<HttpClient> client;
  std::mt19937_64 random{(std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  bool failing = false;  // said once, until it works again

  std::string id() {
    std::uint64_t bits = 0;
    while (bits == 0) bits = random();
    return fmt::format("{:016x}", bits);
  }
  // The body of a request to the collector; *spans: how many are in it.
  std::string body_of(const std::vector<Ended>& batch, int* spans);
  // True: the collector took them. *again: it may yet.
  bool post(const std::string& body, bool* again, std::string* why);
  void send(const std::vector<Ended>& batch);
};

std::string OtlpExporter::State::body_of(const std::vector<Ended>& batch, int* spans) {
  std::string body = "{\"resourceSpans\":[{\"resource\":{\"attributes\":[";
  append_text_attribute(&body, "service.name", options.service);
  body.push_back(',');
  append_text_attribute(&body, "service.version", kVersion);
  body +=
      fmt::format("]}},\"scopeSpans\":[{{\"scope\":{{\"name\":\"fovea\",\"version\":\"{}\"}},\"spans\":[", kVersion);
  *spans = 0;
  for (const Ended& ended : batch) {
    if (*spans > 0) body.push_back(',');
    SpanIds ids{ended.context.trace_id, ended.context.parent_id, {id(), id(), id(), id()}};
    if (ids.trace_id.empty()) ids.trace_id = id() + id();
    *spans += append_request_spans(&body, ended.record, ids, ended.end_ns);
  }
  return body + "]}]}]}";
}

bool OtlpExporter::State::post(const std::string& body, bool* again, std::string* why) {
  *again = true;
  // A connection that the collector has closed since shows itself by failing; then a new one is asked.
  for (const bool kept : {true, false}) {
    if (!client || !kept) {
      auto made = HttpClient::connect(url, options.timeout_seconds);
      if (!made.ok()) {
        *why = made.status().message();
        return false;
      }
      client = std::move(*made);
    }
    const Result<HttpResponse> response = client->post(path, body);
    if (!response.ok()) {
      client.reset();
      *why = response.status().message();
      continue;
    }
    if (response->status == 200) {
      const auto answer = nlohmann::json::parse(response->body, nullptr, false);
      if (answer.is_object() && answer.contains("partialSuccess") && answer["partialSuccess"].is_object()) {
        const auto& message = answer["partialSuccess"].value("errorMessage", nlohmann::json());
        if (message.is_string() && !message.get<std::string>().empty()) {
          log_warning("traces: the collector says: {}", shorten(message.get<std::string>()));
        }
      }
      return true;
    }
    *why = fmt::format("it answered {}", response->status);
    *again = worth_another_try(response->status);
    return false;
  }
  return false;
}

void OtlpExporter::State::send(const std::vector<Ended>& batch) {
  int spans = 0;
  const std::string body = body_of(batch, &spans);
  auto pause = std::chrono::duration_cast<Clock::duration>(kFirstPause);
  std::string why;
  for (int i = 0; i < kTries; ++i, pause *= 2) {
    bool again = false;
    if (post(body, &again, &why)) {
      sent.fetch_add(static_cast<std::uint64_t>(spans));
      if (std::exchange(failing, false)) log_warning("traces: the collector at {} takes spans again", options.endpoint);
      return;
    }
    if (!std::exchange(failing, true)) {
      log_warning(
          "traces: the collector at {} takes no spans: {}; they are dropped and counted in "
          "fovea_trace_requests_dropped_total",
          options.endpoint, shorten(why));
    }
    std::unique_lock lock(mutex);
    if (!again || i + 1 == kTries || changed.wait_for(lock, pause, [this] { return stop; })) break;
  }
  dropped.fetch_add(batch.size());
}

void OtlpExporter::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->stop || !state->waiting.empty(); });
    state->changed.wait_for(lock, kBatchTime, [&] { return state->stop || state->waiting.size() >= kMostABatch; });
    if (state->waiting.empty()) break;
    const auto count = static_cast<std::ptrdiff_t>(std::min(kMostABatch, state->waiting.size()));
    const auto begin = std::make_move_iterator(state->waiting.begin());
    const std::vector<State::Ended> batch(begin, begin + count);
    state->waiting.erase(state->waiting.begin(), state->waiting.begin() + count);
    lock.unlock();
    state->send(batch);
    lock.lock();
  }
  state->over = true;
  state->changed.notify_all();
}

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::start(const OtlpOptions& options) {
  auto state = std::make_shared<State>();
  state->options = options;
  auto url = parse_url(options.endpoint);
  const bool blank = std::any_of(options.endpoint.begin(), options.endpoint.end(),
                                 [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '?' || c == '#'; });
  if (!url.ok() || blank) {
    return invalid_argument(
        "--otlp-endpoint {}: expected http://HOST:PORT, or https, of a collector that takes OTLP over HTTP",
        shorten(options.endpoint));
  }
  if (!url->tls && !options.ca_file.empty()) {
    return invalid_argument("--otlp-ca-file is for https://, --otlp-endpoint is {}", shorten(options.endpoint));
  }
  url->ca_file = options.ca_file;
  if (url->tls) FOVEA_RETURN_IF_ERROR(check_ca_file(url->ca_file));
  state->url = *url;
  state->path = url->path;
  while (state->path.ends_with('/')) state->path.pop_back();
  state->path += "/v1/traces";
  std::thread([state] { run(state); }).detach();
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(std::move(state)));
}

OtlpExporter::~OtlpExporter() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kFarewell, [this] { return state_->over; });
}

void OtlpExporter::add(const RequestRecord& record) {
  State::Ended ended;
  if (auto context = parse_traceparent(record.traceparent)) {
    if (!context->sampled) return;
    ended.context = std::move(*context);
  }
  ended.record = record;
  constexpr std::size_t kMostTraceState = 512;  // what has to be passed on
  if (ended.context.trace_id.empty() || record.tracestate.size() > kMostTraceState) ended.record.tracestate.clear();
  ended.end_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= state_->options.max_waiting) {
    state_->dropped.fetch_add(1);
    return;
  }
  state_->waiting.push_back(std::move(ended));
  state_->changed.notify_all();
}

std::uint64_t OtlpExporter::sent() const { return state_->sent.load(); }
std::uint64_t OtlpExporter::dropped() const { return state_->dropped.load(); }

}  // namespace fovea::server
