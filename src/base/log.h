// Logging: a thin layer over spdlog that keeps it out of other headers. Writes to stderr only; off until
// FOVEA_LOG_LEVEL or set_log_level() says otherwise, so that a library never prints on its own. Used by all of src/;
// apps set the level.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string_view>

#include "fovea/status.h"

namespace fovea {

enum class LogLevel : std::uint8_t { kTrace = 0, kDebug, kInfo, kWarning, kError, kOff };

// "trace", "debug", "info", "warning", "error", "off".
std::string_view log_level_name(LogLevel level);
Result<LogLevel> parse_log_level(std::string_view text);

LogLevel log_level();
void set_log_level(LogLevel level);

// Where messages go instead of stderr; an empty function restores stderr. Called by one thread at a time.
using LogSink = std::function<void(LogLevel, std::string_view)>;
void set_log_sink(LogSink sink);

// Writes whatever the level; use the functions below.
void log_message(LogLevel level, std::string_view text);

template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace fovea
