// Conversions of small numbers; see numbers.h.
#include "testing/simt/numbers.h"

#include <cmath>
#include <vector>

#include "base/half.h"
#include "testing/attention_case.h"

namespace simt {

const float* f16_table() {
  static const std::vector<float> table = [] {
    std::vector<float> all(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) all[i] = fovea::f16_to_float(static_cast<std::uint16_t>(i));
    return all;
  }();
  return table.data();
}

float e4m3_to_float(std::uint32_t bits) { return fovea::testing::float_of_e4m3(static_cast<std::uint8_t>(bits)); }

std::uint32_t float_to_e4m3(float x) {
  if (std::isinf(x)) return x > 0 ? 0x7eu : 0xfeu;
  return fovea::testing::e4m3_of(x);
}

}  // namespace simt
