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

// How far a long run is, on stderr: a bar with rate and time left that redraws at most ten times a second where it is a
// terminal, a line every ten seconds elsewhere. What ends within a second shows nothing. Not for several threads at
// once.
class Progress {
 public:
  // unit: of what is counted, "tokens"; empty: no rate is shown.
  Progress(std::string label, std::int64_t total, std::string unit = "");
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set(std::int64_t done);
  // Removes the bar, so that something else can be printed.
  void clear();

 private:
  std::string label_, unit_;
  std::int64_t total_;
  bool terminal_;
  std::size_t width_ = 0;  // columns that the bar takes now
  std::chrono::steady_clock::time_point start_, drawn_;
};

// "reading the prompt: 4096 of 34000 tokens, 620 tokens a second, 48 s left"
std::string progress_text(const std::string& label, std::int64_t done, std::int64_t total, const std::string& unit,
                          double elapsed_s);

double seconds_since(std::chrono::steady_clock::time_point begin);

// "1.5 GiB", "12.0 KiB".
std::string format_bytes(double bytes);
// "0.8 ms", "1.25 s".
std::string format_seconds(double seconds);

}  // namespace fovea::app
