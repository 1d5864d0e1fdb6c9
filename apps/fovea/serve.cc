// `fovea serve`: the OpenAI-compatible server. Prints its URL, serves until SIGTERM or SIGINT, then drains.
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "end_on_signal.h"
#include "engine_flags.h"
#include "server/events/event_publisher.h"
#include "server/http/local_host.h"
#include "server/server.h"
#include "server/trace/otlp_exporter.h"

namespace fovea::app {
namespace {

struct ServeState {
  EngineFlags engine;
  server::ServerOptions server;
  std::int32_t max_body_mib = 32;
  std::int32_t stream_buffer_kib = 256;
  double drain_seconds = 30.0;
  bool quiet = false;
  std::string log_format = "text";
  std::string log_level = "warning";
  server::EventOptions events;
  std::string event_shape = "map";
  server::OtlpOptions traces;
};

// The server of this process: a command line that is read again is applied to it.
struct Running {
  server::Server& server;
  ServeState& state;
  const Options& options;
};
Running* running = nullptr;
std::atomic<bool> log_requests{true};
std::atomic<bool> log_json{false};

// For errors to reach those who asked an engine that has failed; what supervises the server starts another.
constexpr double kFailedSeconds = 1.0;

// What takes effect without a start.
const std::set<std::string> kReloaded = {"api-key",       "log-format",      "log-level",    "quiet",
                                         "drain-seconds", "max-connections", "max-body-mib", "stream-buffer-kib",
                                         "idle-seconds",  "read-seconds",    "write-seconds"};

// A line is lost rather than waited for: nobody may stop the server by not reading its log, nor may a full disk.
void write_log_line(const std::string& line) {
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
}

// The next of these signals, or 0: the engine has failed for good.
int wait_for_signal(const sigset_t& signals, const Engine& engine) {
  constexpr timespec kLook{0, 200'000'000};
  while (true) {
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal > 0) return signal;
    if (!engine.stats().healthy) return 0;
  }
}

// Names and keys that are nobody's: mostly "$VARIABLE" where it is not set.
Status check_names(const server::ServerOptions& server, const Options& options) {
  const auto is_empty = [](const std::string& text) { return text.empty(); };
  const server::ServiceOptions& service = server.service;
  if (std::any_of(service.api_keys.begin(), service.api_keys.end(), is_empty)) {
    return invalid_argument(
        "an --api-key is empty, which anybody has; give one, or leave the option out to ask for none");
  }
  if (options.variable_is_empty("api-key")) {
    return invalid_argument("FOVEA_API_KEY is empty, which asks for no key; give one, or unset it to let everybody in");
  }
  if (std::any_of(service.served_names.begin(), service.served_names.end(), is_empty)) {
    return invalid_argument("a --served-model-name is empty; expected the name that clients ask for");
  }
  for (const std::string& name : service.allowed_hosts) {
    if (name.empty() || !server::is_host(name)) {
      return invalid_argument("--allowed-host is {}, expected a name such as gpu1.example.org", quote(shorten(name)));
    }
  }
  const std::string& origin = server.http.cors_origin;
  if (!origin.empty() && origin != "*" && origin != "null" && origin.find("://") == std::string::npos) {
    return invalid_argument("--cors-origin is {}, expected * or an origin such as https://app.example.org",
                            quote(shorten(origin)));
  }
  return ok_status();
}

Status prepare(ServeState& state, const Options& options) {
  FOVEA_RETURN_IF_ERROR(check_names(state.server, options));
  if (state.max_body_mib < 1 || state.stream_buffer_kib < 1) {
    return invalid_argument("--max-body-mib and --stream-buffer-kib must be at least 1");
  }
  if (state.server.service.stream_interval < 1) {
    return invalid_argument("--stream-interval is {}, expected 1 (an event a token) or more",
                            state.server.service.stream_interval);
  }
  if (!(state.drain_seconds >= 0.0 && state.drain_seconds <= 1e6)) {
    return invalid_argument("--drain-seconds is {}, expected 0 to 1000000", state.drain_seconds);
  }
  state.server.http.max_body_bytes = static_cast<std::size_t>(state.max_body_mib) << 20;
  state.server.http.stream_buffer_bytes = static_cast<std::size_t>(state.stream_buffer_kib) << 10;
  return server::check_http_options(state.server.http);  // before a model is loaded
}

void apply_logging(const ServeState& state) {
  if (const auto level = parse_log_level(state.log_level); level.ok()) set_log_level(*level);
  log_requests.store(!state.quiet && state.log_format != "off");
  log_json.store(state.log_format == "json");
}

// Nothing changes where something is wrong. Values stay unsaid: keys are among them.
int reload(ServeState& next, const Options& options) {
  if (const Status status = prepare(next, options); !status.ok()) return fail(status);
  if (const Status status = running->server.reload(next.server); !status.ok()) return fail(status);
  std::string now;
  std::string later;
  for (std::size_t i = 0; i < options.entries().size(); ++i) {
    const OptionEntry& entry = options.entries()[i];
    if (entry.render() == running->options.entries()[i].render()) continue;
    std::string& list = kReloaded.contains(entry.flag) ? now : later;
    list += (list.empty() ? "" : ", ") + entry.key;
  }
  ServeState& state = running->state;
  state.server.service.api_keys = next.server.service.api_keys;
  state.server.http.max_connections = next.server.http.max_connections;
  state.server.http.idle_seconds = next.server.http.idle_seconds;
  state.server.http.read_seconds = next.server.http.read_seconds;
  state.server.http.write_seconds = next.server.http.write_seconds;
  std::tie(state.max_body_mib, state.stream_buffer_kib, state.drain_seconds, state.quiet, state.log_format,
           state.log_level) = std::tie(next.max_body_mib, next.stream_buffer_kib, next.drain_seconds, next.quiet,
                                       next.log_format, next.log_level);
  apply_logging(state);
  const bool tls = !state.server.http.tls_cert.empty();
  write_log_line(fmt::format("fovea: configuration{} read again; changed: {}{}\n", tls ? " and certificate" : "",
                             now.empty() ? "nothing" : now, later.empty() ? "" : "; at the next start: " + later));
  return kExitOk;
}

int run_serve(ServeState& state, const Options& options) {
  if (running != nullptr) return reload(state, options);
  if (const Status status = prepare(state, options); !status.ok()) return fail(status);
  apply_logging(state);
  state.server.service.on_request = [](const server::RequestRecord& record) {
    if (!log_requests.load()) return;
    write_log_line(log_json.load() ? server::request_line_json(record) : "fovea: " + server::request_line(record));
  };
  // Blocked before any thread starts, so that all inherit it and sigwait below gets the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  // Outlives the engine, which calls it.
  std::unique_ptr<server::EventPublisher> events;
  if (!state.events.endpoint.empty()) {
    state.events.shape = state.event_shape == "map" ? server::EventShape::kMap : server::EventShape::kArray;
    auto started = server::EventPublisher::start(state.events);
    if (!started.ok()) return fail(started.status());
    events = std::move(*started);
    state.engine.options.on_kv_events = [events = events.get()](std::vector<KvEvent> list) {
      events->publish(std::move(list));
    };
  } else if (!state.events.replay_endpoint.empty()) {
    return fail(invalid_argument("--kv-events-replay needs --kv-events"));
  }
  // Outlives the server.
  std::unique_ptr<server::OtlpExporter> traces;
  if (!state.traces.endpoint.empty()) {
    auto started = server::OtlpExporter::start(state.traces);
    if (!started.ok()) return fail(started.status());
    traces = std::move(*started);
    state.server.service.traces = traces.get();
  }
  const auto begin = std::chrono::steady_clock::now();
  auto engine = [&] {
    const EndOnSignal end("fovea: ended while the model was loading\n");
    return state.engine.create();
  }();
  if (!engine.ok()) return fail(engine.status());
  const double loaded = 1e3 * seconds_since(begin);
  auto server = server::Server::start(**engine, state.server);
  if (!server.ok()) return fail(server.status());
  if (!state.quiet) {
    write_log_line(fmt::format("fovea: model {} of {} tokens context loaded in {:.0f} ms\n", (*engine)->model_name(),
                               (*engine)->max_context(), loaded));
  }
  fmt::print("fovea: serving {} at {}\n", (*engine)->model_name(), (*server)->url());
  std::fflush(stdout);

  Running here{**server, state, options};
  running = &here;
  int signal = 0;
  while ((signal = wait_for_signal(signals, **engine)) == SIGHUP) {
    int code = kExitFailure;
    try {
      code = repeat_command_line();
    } catch (const std::exception& error) {
      write_log_line(fmt::format("fovea: {}\n", error.what()));
    }
    if (code != kExitOk) write_log_line("fovea: the new configuration was refused; the old one goes on\n");
  }
  running = nullptr;
  if (signal == 0) {
    write_log_line(fmt::format("fovea: the engine has failed, so the server ends: {}\n", (*engine)->stats().failure));
    (*server)->drain(kFailedSeconds);
    return kExitFailure;
  }
  if (!state.quiet) {
    write_log_line(fmt::format("fovea: {}: finishing what runs (up to {:.0f} s); once more to stop now\n",
                               signal == SIGINT ? "interrupted" : "terminated", state.drain_seconds));
  }
  // Outlives the drain, because nothing wakes sigwait but a signal.
  static std::atomic<bool> hurry{false};
  std::thread([signals] {
    int again = 0;
    while (sigwait(&signals, &again) == 0 && again == SIGHUP) {
    }
    hurry.store(true);
  }).detach();
  if (!(*server)->drain(state.drain_seconds, &hurry)) write_log_line("fovea: cancelled what still ran\n");
  return kExitOk;
}

}  // namespace

RunFunction declare_serve(Options& options) {
  auto state = std::make_shared<ServeState>();
  server::HttpOptions& http = state->server.http;
  options.add("host", http.host, "Address to listen on; 0.0.0.0: all");
  options.add("port", http.port, "Port; 0: a free one");
  options.add("served-model-name", state->server.service.served_names,
              "Name of the model in the API, instead of its own; more than one may be given");
  options.add_flag("lenient", state->server.service.lenient,
                   "Log and ignore fields of requests that this server does not do, instead of refusing them");
  options.add_choice("tool-parser", state->server.service.tool_parser,
                     {"auto", "hermes", "llama3_json", "mistral", "mistral_v11", "qwen3_coder", "pythonic"},
                     "How the model writes calls of tools; auto: as its chat template says");
  options.add_choice("reasoning-parser", state->server.service.reasoning_parser, {"auto", "off", "think", "mistral"},
                     "How the model marks reasoning in front of its answer; auto: as its chat template says");
  options.add("api-key", state->server.service.api_keys,
              "Ask for Authorization: Bearer KEY; more than one may be given, any of them will do");
  options.add("tls-cert", http.tls_cert,
              "Speak HTTPS: the certificate, and those between it and its authority, as PEM");
  options.add("tls-key", http.tls_key, "Its private key, as PEM without a passphrase");
  options.add("cors-origin", http.cors_origin, "Web origin whose pages may call; *: any; empty: none");
  options.add("allowed-host", state->server.service.allowed_hosts,
              "A name besides those of this machine that a server on a loopback address answers to");
  options.add_choice("log-format", state->log_format, {"text", "json", "off"},
                     "How each request is logged on stderr, a line at its end");
  options.add_choice("log-level", state->log_level, {"trace", "debug", "info", "warning", "error", "off"},
                     "How much the engine says on stderr");
  options.add("drain-seconds", state->drain_seconds, "After SIGTERM, wait this long for requests that run");
  options.add("kv-events", state->events.endpoint,
              "Tell routers which prefixes are cached, by ZeroMQ as vLLM does: tcp://*:5557; needs libzmq5");
  options.add("kv-events-replay", state->events.replay_endpoint, "Where they ask for what they missed: tcp://*:5558");
  options.add("kv-events-topic", state->events.topic, "In front of each: kv@ADDRESS:PORT@MODEL for llm-d");
  options.add_choice("kv-events-format", state->event_shape, {"map", "array"},
                     "map, or array for routers of before 2026-06");
  options.add(
      "otlp-endpoint", state->traces.endpoint,
      "Send a trace of each request to an OpenTelemetry collector: http://HOST:4318 (OTLP over HTTP, JSON), or https");
  options.add("otlp-ca-file", state->traces.ca_file,
              "Trust the authorities of this file (PEM) for an https collector, instead of the system's");
  options.add("otlp-service", state->traces.service, "The service.name of these traces");
  options.add_flag("page", state->server.service.page, "A page for browsers at /: chat, and what the engine does");
  options.add_flag("quiet", state->quiet, "Say nothing on stderr but what goes wrong");
  options.add("io-threads", http.io_threads, "Threads for the network");
  options.add("handler-threads", http.handler_threads, "Threads that parse and tokenize requests");
  options.add("max-connections", http.max_connections, "More connections are answered 503");
  options.add("max-body-mib", state->max_body_mib, "Larger request bodies are answered 413, MiB");
  options.add("stream-buffer-kib", state->stream_buffer_kib, "A client that lags by more is cut, KiB");
  options.add("stream-interval", state->server.service.stream_interval,
              "Tokens of each event of a stream; the first token and the last go out at once");
  options.add("idle-seconds", http.idle_seconds, "Close connections that ask nothing for so long");
  options.add("read-seconds", http.read_seconds, "Close connections whose request takes longer to arrive");
  options.add("write-seconds", http.write_seconds, "Close connections that take nothing for so long");
  state->engine.declare(options);
  options.examples(
      "  fovea serve\n"
      "  fovea serve --model ~/models/Qwen3-0.6B --port 9000 --api-key \"$KEY\"\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"The code is 7. What is the code?\"}]}'");
  return [state, &options] { return run_serve(*state, options); };
}

}  // namespace fovea::app
