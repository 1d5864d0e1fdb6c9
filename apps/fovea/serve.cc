// `fovea serve`: the OpenAI-compatible server. Prints its URL, serves until SIGTERM or SIGINT, then drains.
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "server/server.h"

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
};

// A line is lost rather than waited for: nobody may stop the server by not reading its log.
void write_log_line(const std::string& line) {
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
}

int run_serve(ServeState& state) {
  if (state.max_body_mib < 1 || state.stream_buffer_kib < 1) {
    return fail(Status(StatusCode::kInvalidArgument, "--max-body-mib and --stream-buffer-kib must be at least 1"));
  }
  if (!(state.drain_seconds >= 0.0 && state.drain_seconds <= 1e6)) {
    return fail(invalid_argument("--drain-seconds is {}, expected 0 to 1000000", state.drain_seconds));
  }
  state.server.http.max_body_bytes = static_cast<std::size_t>(state.max_body_mib) << 20;
  state.server.http.stream_buffer_bytes = static_cast<std::size_t>(state.stream_buffer_kib) << 10;
  if (!state.quiet && state.log_format != "off") {
    state.server.service.on_request = [json = state.log_format == "json"](const server::RequestRecord& record) {
      write_log_line(json ? server::request_line_json(record) : "fovea: " + server::request_line(record));
    };
  }
  // Blocked before any thread starts, so that all inherit it and sigwait below gets the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto begin = std::chrono::steady_clock::now();
  auto engine = state.engine.create();
  if (!engine.ok()) return fail(engine.status());
  const double loaded = 1e3 * seconds_since(begin);
  auto server = server::Server::start(**engine, state.server);
  if (!server.ok()) return fail(server.status());
  if (!state.quiet) {
    fmt::print(stderr, "fovea: model {} of {} tokens context loaded in {:.0f} ms\n", (*engine)->model_name(),
               (*engine)->max_context(), loaded);
  }
  fmt::print("fovea: serving {} at {}\n", (*engine)->model_name(), (*server)->url());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  if (!state.quiet) {
    fmt::print(stderr, "fovea: {}: finishing what runs (up to {:.0f} s); once more to stop now\n",
               signal == SIGINT ? "interrupted" : "terminated", state.drain_seconds);
  }
  // Outlives the drain, because nothing wakes sigwait but a signal.
  static std::atomic<bool> hurry{false};
  std::thread([signals] {
    int again = 0;
    sigwait(&signals, &again);
    hurry.store(true);
  }).detach();
  if (!(*server)->drain(state.drain_seconds, &hurry)) fmt::print(stderr, "fovea: cancelled what still ran\n");
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
                     {"auto", "hermes", "llama3_json", "mistral", "qwen3_coder"},
                     "How the model writes calls of tools; auto: as its chat template says");
  options.add_choice("reasoning-parser", state->server.service.reasoning_parser, {"auto", "off", "think", "mistral"},
                     "How the model marks reasoning in front of its answer; auto: as its chat template says");
  options.add("api-key", state->server.service.api_keys,
              "Ask for Authorization: Bearer KEY; more than one may be given, any of them will do");
  options.add("cors-origin", http.cors_origin, "Web origin whose pages may call; *: any; empty: none");
  options.add("allowed-host", state->server.service.allowed_hosts,
              "A name besides those of this machine that a server on a loopback address answers to");
  options.add_choice("log-format", state->log_format, {"text", "json", "off"},
                     "How each request is logged on stderr, a line at its end");
  options.add("drain-seconds", state->drain_seconds, "After SIGTERM, wait this long for requests that run");
  options.add_flag("page", state->server.service.page, "A page for browsers at /: chat, and what the engine does");
  options.add_flag("quiet", state->quiet, "Say nothing on stderr but what goes wrong");
  options.add("io-threads", http.io_threads, "Threads for the network");
  options.add("handler-threads", http.handler_threads, "Threads that parse and tokenize requests");
  options.add("max-connections", http.max_connections, "More connections are answered 503");
  options.add("max-body-mib", state->max_body_mib, "Larger request bodies are answered 413, MiB");
  options.add("stream-buffer-kib", state->stream_buffer_kib, "A client that lags by more is cut, KiB");
  options.add("idle-seconds", http.idle_seconds, "Close connections that ask nothing for so long");
  options.add("read-seconds", http.read_seconds, "Close connections whose request takes longer to arrive");
  options.add("write-seconds", http.write_seconds, "Close connections that take nothing for so long");
  state->engine.declare(options);
  options.examples(
      "  fovea serve\n"
      "  fovea serve --model ~/models/Qwen3-0.6B --port 9000 --api-key \"$KEY\"\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"The code is 7. What is the code?\"}]}'");
  return [state] { return run_serve(*state); };
}

}  // namespace fovea::app
