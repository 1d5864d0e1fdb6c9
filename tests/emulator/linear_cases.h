// Instantiations of the kernel of decode's products that the emulator's tests run. Used by the generator of their
// sources and by linear_test.cc.
#pragma once

#include <string_view>

#include "jit/linear_spec.h"

namespace fovea::emulator_test {

struct LinearCase {
  std::string_view name;
  jit::LinearKernelSpec spec;
  std::uint32_t k;     // numbers along it, of which the warps' shares differ
  std::uint32_t rows;  // of the weights
};

inline const LinearCase* find_linear_case(std::string_view name) {
  constexpr auto kSilu = abi::LinearActivation::kSilu;
  static const LinearCase cases[] = {
      {"products", {.norm = true, .activation = kSilu}, 1120, 208},
      {"products_far", {.split = 2, .norm = true}, 4640, 176},
      {"products_fp8", {.fp8 = true, .norm = true}, 1216, 104},
      {"products_fp8_far", {.fp8 = true, .split = 4}, 8512, 168},
      {"products_halves",
       {.dtype = abi::KvDType::kF16, .tokens = 16, .split = 2, .ring = abi::linear_ring(2)},
       2080,
       176},
  };
  for (const LinearCase& c : cases) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

}  // namespace fovea::emulator_test
