// Slips, Kubernetes' own variables, and values that do not parse, in the environment.
#include "environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/env.h"
#include "base/quote.h"

namespace fovea::app {

std::vector<std::string> unknown_variables(const std::vector<std::string>& environment,
                                           std::vector<std::string> known) {
  for (const EnvEntry& entry : env_table()) known.emplace_back(entry.name);
  // Of the Python package and of the tests, which run commands too, and of processes that commands start.
  known.insert(known.end(),
               {"FOVEA_CONFIG", "FOVEA_RANK", "FOVEA_LIBRARY", "FOVEA_BINARY", "FOVEA_TEST_MODEL", "FOVEA_GPU_CASES"});
  std::vector<std::string> lines;
  for (const std::string& variable : environment) {
    const std::string name = variable.substr(0, variable.find('='));
    if (!name.starts_with("FOVEA_") || is_service_link(variable) ||
        std::find(known.begin(), known.end(), name) != known.end())
      continue;
    const std::string_view nearest = nearest_name(name, known);
    lines.push_back(fmt::format("the environment sets {}, which nothing reads{}", quote(name),
                                nearest.empty() ? "" : fmt::format("; {} is near", nearest)));
  }
  return lines;
}

bool is_service_link(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  const std::string_view value = variable.substr(std::min(name.size() + 1, variable.size()));
  if (name.starts_with("FOVEA_SERVICE_")) return true;
  if (!name.starts_with("FOVEA_PORT")) return false;
  const bool of_one_port = name.starts_with("FOVEA_PORT_") && name.size() > 11 && name[11] >= '0' && name[11] <= '9';
  return of_one_port || value.find("://") != std::string_view::npos;
}

std::string name_variable(std::string message, const std::vector<std::string>& environment) {
  for (const std::string& variable : environment) {
    const std::string name = variable.substr(0, variable.find('='));
    if (!name.starts_with("FOVEA_") || variable.size() < name.size() + 2) continue;
    std::string flag = "--" + name.substr(6);
    for (char& c : flag) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (message.find(flag) == std::string::npos ||
        message.find(variable.substr(name.size() + 1)) == std::string::npos) {
      continue;
    }
    return message + fmt::format("({} is set in the environment)\n", name);
  }
  return message;
}

}  // namespace fovea::app
