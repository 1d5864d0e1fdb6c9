// Frequencies of rotary position embedding.
#include "core/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fovea {
namespace {

// Index of the pair that turns `rotations` times within the original context (YaRN, eq. 17, solved for the index).
double yarn_index(const RopeConfig& p, double rotations) {
  return p.rotary_dim * std::log(p.original_max_position / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(p.theta));
}

void scale_yarn(const RopeConfig& p, std::vector<float>& frequencies) {
  const double low = std::max(std::floor(yarn_index(p, p.beta_fast)), 0.0);
  double high = std::min(std::ceil(yarn_index(p, p.beta_slow)), p.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(static_cast<float>((static_cast<double>(i) - low) / (high - low)), 0.0f, 1.0f);
    const float interpolated = frequencies[i] / static_cast<float>(p.factor);
    frequencies[i] = interpolated * ramp + frequencies[i] * (1.0f - ramp);
  }
}

void scale_llama3(const RopeConfig& p, std::vector<float>& frequencies) {
  const double low_wavelength = p.original_max_position / p.low_freq_factor;
  const double high_wavelength = p.original_max_position / p.high_freq_factor;
  for (float& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength > low_wavelength) {
      frequency /= static_cast<float>(p.factor);
    } else if (wavelength >= high_wavelength) {
      const double smooth =
          (p.original_max_position / wavelength - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
      frequency = static_cast<float>((1.0 - smooth) * frequency / p.factor + smooth * frequency);
    }
  }
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& config) {
  std::vector<float> frequencies(static_cast<std::size_t>(config.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
    frequencies[i] = 1.0f / std::pow(static_cast<float>(config.theta), exponent);
  }
  if (config.kind == RopeKind::kLinear) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(config.factor);
  } else if (config.kind == RopeKind::kLlama3) {
    scale_llama3(config, frequencies);
  } else if (config.kind == RopeKind::kYarn) {
    scale_yarn(config, frequencies);
  } else if (config.kind == RopeKind::kLongRope) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
      const float power = std::pow(static_cast<float>(config.theta), exponent);
      frequencies[i] = 1.0f / (static_cast<float>(config.frequency_divisors[i]) * power);
    }
  }
  return frequencies;
}

float rope_attention_factor(const RopeConfig& config) {
  if (config.kind != RopeKind::kYarn && config.kind != RopeKind::kLongRope) return 1.0f;
  if (config.attention_factor > 0.0) return static_cast<float>(config.attention_factor);
  return config.factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * std::log(config.factor) + 1.0);
}

}  // namespace fovea
