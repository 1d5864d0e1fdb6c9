// Uniform numbers of positions, and the record of a row.
#include "engine/sampler/draw.h"

#include <cmath>
#include <limits>

#include "base/random.h"

namespace fovea {

double sampling_uniform(std::uint64_t seed, std::int32_t position) {
  PhiloxRng rng(seed, 0x73616d706c65ull);
  rng.seek(static_cast<std::uint64_t>(position));
  return rng.next_double();
}

abi::DrawRow draw_row(const DrawSetting& setting, std::int32_t position) {
  abi::DrawRow row{};
  if (!setting.draws()) return row;
  row.inverse_temperature = 1.0f / setting.temperature;
  row.top_p = setting.top_p;
  row.reach =
      setting.min_p > 0.0f ? -std::log(setting.min_p) * setting.temperature : std::numeric_limits<float>::infinity();
  const auto u = static_cast<std::uint64_t>(std::ldexp(sampling_uniform(setting.seed, position), 53));
  row.u_low = static_cast<std::uint32_t>(u);
  row.u_high = static_cast<std::uint32_t>(u >> 32);
  return row;
}

}  // namespace fovea
