#include "environment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/env.h"
#include "base/quote.h"

namespace fovea::app {

std::vector<std::string> unknown_variables(const std::vector<std::string>& environment,
                                           std::vector<std::string> known) {
  for (const EnvEntry& entry : env_table()) known.emplace_back(entry.name);
  // Of the Python package and of the tests, which run commands too.
  known.insert(known.end(), {"FOVEA_CONFIG", "FOVEA_LIBRARY", "FOVEA_BINARY", "FOVEA_TEST_MODEL", "FOVEA_GPU_CASES"});
  std::vector<std::string> lines;
  for (const std::string& variable : environment) {
    const std::string name = variable.substr(0, variable.find('='));
    if (!name.starts_with("FOVEA_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string_view nearest = nearest_name(name, known);
    lines.push_back(fmt::format("the environment sets {}, which nothing reads{}", quote(name),
                                nearest.empty() ? "" : fmt::format("; {} is near", nearest)));
  }
  return lines;
}

}  // namespace fovea::app
