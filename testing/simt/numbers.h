// Numbers of 8 and 16 bits as floats, by tables where products ask for many. Used by the instructions.
#pragma once

#include <cstdint>

namespace simt {

// Of all 65536 halves.
const float* f16_table();

float e4m3_to_float(std::uint32_t bits);
std::uint32_t float_to_e4m3(float x);  // to nearest even; what is beyond 448 becomes that

}  // namespace simt
