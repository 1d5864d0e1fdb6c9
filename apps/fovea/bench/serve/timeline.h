// The latest steps of an engine as a picture: what the host did above what the device did, on one time axis. Used by
// `fovea bench serve --timeline`.
#pragma once

#include <string>
#include <vector>

#include "fovea/engine_view.h"

namespace fovea::app {

// Of the last `most` steps; the device's lane is missing where it has no times of its own.
std::string draw_timeline(const std::vector<StepSpan>& spans, std::size_t most, const std::string& title);

// Share of the time between the first step's begin and the last one's end that the device had nothing to do; 0 where
// that is not known.
double idle_share(const std::vector<StepSpan>& spans);

}  // namespace fovea::app
