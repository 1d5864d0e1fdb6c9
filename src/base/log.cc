// The logger behind base/log.h: one spdlog logger on stderr, or the caller's sink.
#include "base/log.h"

#include <pthread.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/env.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warning", "error", "off"};

LogLevel initial_level() {
  const Result<LogLevel> level = parse_log_level(env_string(EnvVar::kLogLevel));
  return level.ok() ? *level : LogLevel::kWarning;
}

std::atomic<LogLevel>& level_slot() {
  static std::atomic<LogLevel> level{initial_level()};
  return level;
}

struct Output {
  std::mutex mutex;
  LogSink sink;
  spdlog::logger logger{"fovea", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  Output() {
    logger.set_level(spdlog::level::trace);
    logger.flush_on(spdlog::level::trace);
    logger.set_pattern("%H:%M:%S.%e %l %v");
  }
};

// Never destroyed: threads may log while the process ends. Held while the process forks, so that no message is half
// written where its child goes on.
Output& output() {
  static Output* const instance = [] {
    auto* const made = new Output;
    ::pthread_atfork([] { output().mutex.lock(); }, [] { output().mutex.unlock(); }, [] { output().mutex.unlock(); });
    return made;
  }();
  return *instance;
}

}  // namespace

std::string_view log_level_name(LogLevel level) { return kNames[static_cast<std::size_t>(level)]; }

Result<LogLevel> parse_log_level(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<LogLevel>(i);
  }
  return invalid_argument("log level is {}, expected trace, debug, info, warning, error or off", quote(text));
}

LogLevel log_level() { return level_slot().load(std::memory_order_relaxed); }

void set_log_level(LogLevel level) { level_slot().store(level, std::memory_order_relaxed); }

void set_log_sink(LogSink sink) {
  Output& out = output();
  const std::lock_guard<std::mutex> lock(out.mutex);
  out.sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view text) {
  if (level == LogLevel::kOff) return;
  Output& out = output();
  const std::lock_guard<std::mutex> lock(out.mutex);
  if (out.sink) {
    out.sink(level, text);
  } else {
    out.logger.log(static_cast<spdlog::level::level_enum>(level), spdlog::string_view_t(text.data(), text.size()));
  }
}

}  // namespace fovea
