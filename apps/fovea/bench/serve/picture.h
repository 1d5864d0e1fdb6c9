// A load as a picture: each request from when it was sent over its first token to its last. Used by `fovea bench serve
// --svg`.
#pragma once

#include <string>
#include <vector>

#include "bench/serve/load.h"

namespace fovea::app {

struct PicturedLoad {
  std::string title;
  LoadResult result;
};

// Cases below each other, on time axes of their own.
std::string draw_loads(const std::vector<PicturedLoad>& loads);

}  // namespace fovea::app
