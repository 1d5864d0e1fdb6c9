// Variables of the environment that look like Fovea's and are not. Called once by main.cc.
#pragma once

#include <string>
#include <vector>

namespace fovea::app {

// One line for each variable of `environment` ("NAME=value") that begins with FOVEA_ and is none of `known`, with the
// known name nearest to it.
std::vector<std::string> unknown_variables(const std::vector<std::string>& environment, std::vector<std::string> known);

}  // namespace fovea::app
