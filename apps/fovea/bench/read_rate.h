// The rate that plain readers read memory with: what `fovea bench model` and `bench serve` put figures beside.
#pragma once

#include "fovea/status.h"

namespace fovea::app {

// Bytes a second over a block of so many bytes, read again and again by all threads: what fits a cache comes from
// there, as a small model's weights do.
Result<double> measure_read_rate(double bytes);

}  // namespace fovea::app
