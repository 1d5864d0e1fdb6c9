// The terminal side of the commands: error lines, progress on stderr when it is a terminal, where --json goes.
#pragma once

#include <chrono>
#include <string>

#include "fovea/status.h"

namespace fovea::app {

// Prints "fovea: MESSAGE" on stderr; returns the exit code (2 for kInvalidArgument, else 1).
int fail(const Status& status);

bool stdout_is_terminal();
bool stderr_is_terminal();

// Writes text to a file, or to stdout when path is "-".
Status write_output(const std::string& path, const std::string& text);
// Says before a long run whether write_output can work; empty and "-" always can.
Status check_output(const std::string& path);
// Reads a file, or stdin when path is "-"; kNotFound, kDataLoss, or kResourceExhausted beyond 256 MiB.
Status read_input(const std::string& path, std::string* text);

// A progress bar that redraws at most ten times a second; silent when stderr is no terminal.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set(std::int64_t done);

 private:
  std::string label_;
  std::int64_t total_;
  bool shown_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

double seconds_since(std::chrono::steady_clock::time_point begin);

// "1.5 GiB", "12.0 KiB".
std::string format_bytes(double bytes);
// "0.8 ms", "1.25 s".
std::string format_seconds(double seconds);

}  // namespace fovea::app
