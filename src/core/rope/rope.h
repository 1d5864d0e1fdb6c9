// Rotary position embedding: the one record that says how a model rotates, and its frequencies. Filled by the engine's
// model configuration, read by every backend.
#pragma once

#include <cstdint>
#include <vector>

namespace fovea {

enum class RopeKind : std::uint8_t { kNone, kPlain, kLinear, kLlama3, kYarn, kLongRope };

// NeoX halves: dimension i rotates with dimension i + rotary_dim / 2. Sources: RoFormer (2104.09864), Llama 3.1's
// published scaling, YaRN (2309.00071), LongRoPE (2402.13753).
struct RopeConfig {
  RopeKind kind = RopeKind::kPlain;
  double theta = 10000.0;
  std::int32_t rotary_dim = 0;          // leading dims that rotate; head_dim for most models
  double factor = 1.0;                  // kLinear, kLlama3, kYarn
  double low_freq_factor = 1.0;         // kLlama3
  double high_freq_factor = 4.0;        // kLlama3
  double original_max_position = 8192;  // kLlama3, kYarn
  double beta_fast = 32.0;              // kYarn
  double beta_slow = 1.0;               // kYarn
  double attention_factor = 0.0;        // kYarn: 0 is 0.1 ln(factor) + 1; kLongRope: as given
  // kLongRope: what divides each frequency, [rotary_dim / 2]. A model has two such lists, for contexts up to its
  // original length and beyond; one is chosen for the whole cache, because keys are stored rotated.
  std::vector<double> frequency_divisors;
  bool operator==(const RopeConfig&) const = default;
};

// Radians a position for each of rotary_dim / 2 pairs. In fp32 like the frameworks models are trained with: at position
// 30,000 the last bit of a frequency is worth a milliradian. Sources: RoFormer (2104.09864, section 3.2.2); Llama 3.1's
// published scaling; YaRN (2309.00071, section 3.2); LongRoPE (2402.13753, section 3.2).
std::vector<float> rope_frequencies(const RopeConfig& config);

// What YaRN (section 3.4) and LongRoPE multiply cosines and sines with; 1 for the other kinds.
float rope_attention_factor(const RopeConfig& config);

}  // namespace fovea
