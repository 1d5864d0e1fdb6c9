// What a device needs to draw a sequence's next tokens (Device::draw): parameters that stay, and the uniform number of
// each position, which depends on the seed and the position alone. Used by the sampler, and by the runner for devices
// that draw.
#pragma once

#include <cstdint>

#include "abi/op_args.h"

namespace fovea {

// Uniform in [0, 1) with 53 bits.
double sampling_uniform(std::uint64_t seed, std::int32_t position);

struct DrawSetting {
  float temperature = 0.0f;  // 0: the device does not draw
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint64_t seed = 0;

  bool draws() const { return temperature > 0.0f; }
};

// position: tokens that were generated before.
abi::DrawRow draw_row(const DrawSetting& setting, std::int32_t position);

}  // namespace fovea
