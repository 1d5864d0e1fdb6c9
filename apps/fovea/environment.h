// Variables of the environment that look like Fovea's: slips, Kubernetes' own, values that do not parse. Called by
// main.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea::app {

// One line for each variable of `environment` ("NAME=value") that begins with FOVEA_ and is none of `known`, with the
// known name nearest to it.
std::vector<std::string> unknown_variables(const std::vector<std::string>& environment, std::vector<std::string> known);

// A variable that Kubernetes makes for a Service named "fovea" and that means nothing here:
// FOVEA_PORT=tcp://10.0.0.1:80, FOVEA_SERVICE_HOST, FOVEA_PORT_80_TCP_ADDR, ..
bool is_service_link(std::string_view variable);

// message, and which variable of the environment the value came from, where it repeats an option and the value of one.
std::string name_variable(std::string message, const std::vector<std::string>& environment);

}  // namespace fovea::app
