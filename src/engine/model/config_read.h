// What config.cc reads through: checked numbers, the rotary embedding (config_rope.cc), and
// quantized weights (config_quantization.cc).
#pragma once

#include <string_view>

#include "base/json.h"
#include "engine/model/config.h"
#include "fovea/status.h"

namespace fovea {

// A finite number above 0; an absent key gives the fallback.
Result<double> positive(const JsonReader& json, std::string_view key, double fallback);

// How a family writes its rotary embedding.
struct RopeFields {
  double theta = 10000.0;  // default of rope_theta
  bool partial = false;    // partial_rotary_factor counts; transformers ignores it in the other families
  bool by_layer =
      false;  // layers with a sliding window rotate in their own way, and factors do not stretch the context
};

// Fills rope, window_rope and short_context_divisors, and stretches max_position where scaling does. head_dim,
// max_position and num_layers are read already.
Status read_rope(const JsonReader& json, const RopeFields& fields, ModelConfig& config);

// kUnsupported names what a quantization_config has that cannot be loaded.
Status check_quantization(const JsonReader& config);

}  // namespace fovea
