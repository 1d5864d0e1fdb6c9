// Frequencies and tables of rotary position embedding.
#include "cpu/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace fovea::cpu {
namespace {

// Index of the pair that turns `rotations` times within the original context (YaRN, eq. 17, solved for the index).
double yarn_index(const RopeParams& p, double rotations) {
  return p.rotary_dim * std::log(p.original_max_position / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(p.theta));
}

void scale_yarn(const RopeParams& p, std::vector<float>& frequencies) {
  const double low = std::max(std::floor(yarn_index(p, p.beta_fast)), 0.0);
  double high = std::min(std::ceil(yarn_index(p, p.beta_slow)), p.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(static_cast<float>((static_cast<double>(i) - low) / (high - low)), 0.0f, 1.0f);
    const float interpolated = frequencies[i] / static_cast<float>(p.factor);
    frequencies[i] = interpolated * ramp + frequencies[i] * (1.0f - ramp);
  }
}

void scale_llama3(const RopeParams& p, std::vector<float>& frequencies) {
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

std::vector<float> rope_frequencies(const RopeParams& params) {
  std::vector<float> frequencies(static_cast<std::size_t>(params.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(params.rotary_dim);
    frequencies[i] = 1.0f / std::pow(static_cast<float>(params.theta), exponent);
  }
  if (params.scaling == RopeScaling::kLinear) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(params.factor);
  } else if (params.scaling == RopeScaling::kLlama3) {
    scale_llama3(params, frequencies);
  } else if (params.scaling == RopeScaling::kYarn) {
    scale_yarn(params, frequencies);
  }
  return frequencies;
}

float rope_attention_factor(const RopeParams& params) {
  if (params.scaling != RopeScaling::kYarn) return 1.0f;
  if (params.attention_factor > 0.0) return static_cast<float>(params.attention_factor);
  return params.factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * std::log(params.factor) + 1.0);
}

const float* RopeCache::prepare(const std::int32_t* positions, std::int64_t rows, const RopeParams& params,
                                ThreadPool& pool) {
  const auto count = static_cast<std::size_t>(rows);
  const bool same_params = params == params_ && !frequencies_.empty();
  if (same_params && positions_.size() == count &&
      (rows == 0 || std::memcmp(positions_.data(), positions, count * sizeof(*positions)) == 0)) {
    return cos_sin_.data();
  }
  if (!same_params) {
    params_ = params;
    frequencies_ = rope_frequencies(params);
    attention_factor_ = rope_attention_factor(params);
  }
  positions_.assign(positions, positions + rows);
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  if (cos_sin_.size() < count * static_cast<std::size_t>(2 * half)) {
    cos_sin_.resize(count * static_cast<std::size_t>(2 * half));
  }
  const std::int64_t grain = std::max<std::int64_t>(8, rows / (pool.size() * std::int64_t{4}));
  pool.parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* cosines = cos_sin_.data() + row * 2 * half;
      for (std::int64_t i = 0; i < half; ++i) {
        // The product is rounded to fp32 as in training; its cosine then is taken precisely.
        const float angle =
            static_cast<float>(positions_[static_cast<std::size_t>(row)]) * frequencies_[static_cast<std::size_t>(i)];
        cosines[i] = std::cos(angle) * attention_factor_;
        cosines[half + i] = std::sin(angle) * attention_factor_;
      }
    }
  });
  return cos_sin_.data();
}

}  // namespace fovea::cpu
