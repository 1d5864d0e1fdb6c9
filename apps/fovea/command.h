// What a command of the binary is. Every command lives in a file of its own, declares its options in one function and
// stands as one line in commands.cc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "options.h"

namespace fovea::app {

// Process exit codes, a contract with scripts.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// Runs the command once its options are parsed; returns an exit code.
using RunFunction = std::function<int()>;
// Declares the options (bound to state that the returned function owns) and returns what runs the command.
using DeclareFunction = RunFunction (*)(Options&);

struct CommandEntry {
  const char* name;     // words separated by a space: "serve", "bench attention"
  const char* summary;  // one line of --help
  DeclareFunction declare;
};

// Every command, in the order of --help.
const std::vector<CommandEntry>& commands();

// Reads flags, environment and --config again and runs the command with what they say now; main() sets it. `fovea
// serve` calls it on SIGHUP, and its second run applies to the server that stands. Returns an exit code.
inline std::function<int()> repeat_command_line;

}  // namespace fovea::app
