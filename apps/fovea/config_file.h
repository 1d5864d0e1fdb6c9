// Reads the --config file (TOML) and makes its values the defaults of the commands' options. Called by main.cc.
#pragma once

#include <string>
#include <vector>

#include "fovea/status.h"
#include "options.h"

namespace fovea::app {

struct ConfigTarget {
  std::string command;  // "bench serve"
  Options* options;
};

// The table of a command: "bench serve" -> "bench_serve".
std::string config_section(const std::string& command);

// Keys at the top of the file apply to every command that has the option; keys under [command] to that one, and win.
// kNotFound: no such file; kInvalidArgument: not TOML, an unknown key or a value that the option refuses.
Status apply_config_file(const std::string& path, const std::vector<ConfigTarget>& targets);

}  // namespace fovea::app
