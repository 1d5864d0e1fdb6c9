#include "console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/quote.h"
#include "base/status.h"
#include "command.h"

namespace fovea::app {
namespace {

// A device such as /dev/zero, or a producer that never stops, must not fill the memory.
constexpr std::size_t kMaxInputBytes = std::size_t{256} << 20;

}  // namespace

int fail(const Status& status) {
  fmt::print(stderr, "fovea: {}\n", status.message());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

Status write_output(const std::string& path, const std::string& text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      return data_loss("cannot write to stdout");
    }
    return {};
  }
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return not_found("cannot write {}: {}", shorten(path), std::strerror(errno));
  return {};
}

Status check_output(const std::string& path) {
  if (path.empty() || path == "-") return {};
  std::error_code error;
  const std::filesystem::path file(path);
  if (std::filesystem::is_directory(file, error)) return not_found("cannot write {}: it is a folder", shorten(path));
  const std::string target = std::filesystem::exists(file, error) ? path
                             : file.has_parent_path()             ? file.parent_path().string()
                                                                  : ".";
  if (access(target.c_str(), W_OK) != 0) return not_found("cannot write {}: {}", shorten(path), std::strerror(errno));
  return {};
}

Status read_input(const std::string& path, std::string* text) {
  text->clear();
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return not_found("cannot open {}: {}", shorten(path), std::strerror(errno));
  char buffer[65536];
  std::size_t count = 0;
  while (text->size() <= kMaxInputBytes && (count = std::fread(buffer, 1, sizeof(buffer), file)) > 0) {
    text->append(buffer, count);
  }
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) return data_loss("cannot read {}: {}", shorten(path), std::strerror(error));
  if (text->size() > kMaxInputBytes) {
    return resource_exhausted("{} is longer than {} MiB, the most that is read", path == "-" ? "stdin" : shorten(path),
                              kMaxInputBytes >> 20);
  }
  return {};
}

std::string progress_text(const std::string& label, std::int64_t done, std::int64_t total, const std::string& unit,
                          double elapsed_s) {
  std::string text = fmt::format("{}: {} of {}{}{}", label, done, total, unit.empty() ? "" : " ", unit);
  if (done <= 0 || elapsed_s <= 0.0) return text;
  const double rate = static_cast<double>(done) / elapsed_s;
  if (!unit.empty()) text += fmt::format(", {:.0f} {} a second", rate, unit);
  return text + fmt::format(", {:.0f} s left", static_cast<double>(total - done) / rate);
}

Progress::Progress(std::string label, std::int64_t total, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(stderr_is_terminal()),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

void Progress::set(std::int64_t done) {
  const auto now = std::chrono::steady_clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double since = std::chrono::duration<double>(now - drawn_).count();
  if (elapsed < 1.0 || since < (terminal_ ? 0.1 : 10.0)) return;
  drawn_ = now;
  const std::string text = progress_text(label_, done, total_, unit_, elapsed);
  if (!terminal_) {
    fmt::print(stderr, "fovea: {}\n", text);
    return;
  }
  constexpr std::size_t kWidth = 24;
  const double share = total_ > 0 ? static_cast<double>(done) / static_cast<double>(total_) : 0.0;
  const std::string filled(static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kWidth), '#');
  const std::string line = fmt::format("[{:<{}}] {}", filled, kWidth, text);
  fmt::print(stderr, "\r{:<{}}", line, width_);
  width_ = std::max(width_, line.size());
  std::fflush(stderr);
}

void Progress::clear() {
  if (width_ == 0) return;
  fmt::print(stderr, "\r{:<{}}\r", "", width_);
  std::fflush(stderr);
  width_ = 0;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024.0 && unit < 4) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace fovea::app
