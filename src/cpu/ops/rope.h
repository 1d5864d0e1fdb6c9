// Angles of rotary position embedding: frequencies by scaling kind, and the cosines and sines of one forward's
// positions, which all layers share. Used by the CPU backend's rope().
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace fovea::cpu {

// The fields of device/device.h's RopeConfig, which this layer cannot see.
enum class RopeScaling : std::uint8_t { kPlain, kLinear, kLlama3, kYarn };
struct RopeParams {
  RopeScaling scaling = RopeScaling::kPlain;
  double theta = 10000.0;
  std::int32_t rotary_dim = 0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_position = 8192.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // kYarn; 0: 0.1 ln(factor) + 1
  bool operator==(const RopeParams&) const = default;
};

// Radians a position for each of rotary_dim / 2 pairs. In fp32 like the frameworks models are trained with: at position
// 30,000 the last bit of a frequency is worth a milliradian. Sources: RoFormer (2104.09864, section 3.2.2); Llama 3.1's
// published scaling; YaRN (2309.00071, section 3.2).
std::vector<float> rope_frequencies(const RopeParams& params);

// What YaRN multiplies cosines and sines with (section 3.4); 1 for the other kinds.
float rope_attention_factor(const RopeParams& params);

class RopeCache {
 public:
  // [rows][rotary_dim]: rotary_dim / 2 cosines, then as many sines, for each position. Computed once as long as
  // positions and params stay the same, which they do from layer to layer. Valid until the next call.
  const float* prepare(const std::int32_t* positions, std::int64_t rows, const RopeParams& params, ThreadPool& pool);

 private:
  RopeParams params_;
  std::vector<float> frequencies_;
  float attention_factor_ = 1.0f;
  std::vector<std::int32_t> positions_;
  std::vector<float> cos_sin_;
};

}  // namespace fovea::cpu
