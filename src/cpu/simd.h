// Which instruction set the SIMD kernels of this process use. Set by create_device from DeviceOptions::simd and by
// tests that walk through all targets; the kernels themselves dispatch through Highway.
#pragma once

#include <string_view>
#include <vector>

#include "fovea/status.h"

namespace fovea::cpu {

// "avx512", "avx2", "scalar": what this machine runs, best first.
std::vector<std::string_view> simd_targets();

// Kernels use at most this instruction set from now on, in the whole process; "" stands for the best there is. Call
// while no kernel runs. kInvalidArgument for an unknown name, kUnsupported when the CPU lacks it.
Status set_simd_cap(std::string_view name);

// The instruction set that kernels use now.
std::string_view simd_target();

}  // namespace fovea::cpu
