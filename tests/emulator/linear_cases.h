// Instantiations of the kernels of decode's products that the emulator's tests run. Used by the generator of their
// sources and by linear_test.cc.
#pragma once

#include <string_view>
#include <variant>

#include "jit/linear_spec.h"

namespace fovea::emulator_test {

struct LinearCase {
  std::string_view name;
  std::variant<jit::LinearKernelSpec, jit::BatchLinearKernelSpec> spec;
  std::uint32_t k;     // numbers along it, of which the warps' shares differ
  std::uint32_t rows;  // of the weights

  bool is_batch() const { return spec.index() == 1; }
  const char* entry() const { return is_batch() ? "fovea_linear_batch" : "fovea_linear"; }
  Result<jit::KernelSource> source() const {
    return is_batch() ? jit::batch_linear_source(std::get<1>(spec)) : jit::linear_source(std::get<0>(spec));
  }
};

inline const LinearCase* find_linear_case(std::string_view name) {
  using Few = jit::LinearKernelSpec;
  using Batch = jit::BatchLinearKernelSpec;
  constexpr auto kSilu = abi::LinearActivation::kSilu;
  static const LinearCase cases[] = {
      {"products", Few{.norm = true, .activation = kSilu}, 1120, 208},
      {"products_far", Few{.split = 2, .norm = true}, 4640, 176},
      {"products_fp8", Few{.fp8 = true, .norm = true}, 1216, 104},
      {"products_fp8_far", Few{.fp8 = true, .split = 4}, 8512, 168},
      {"products_halves", Few{.dtype = abi::KvDType::kF16, .tokens = 16, .split = 2, .ring = abi::linear_ring(2)}, 2080,
       176},
      // Blocks of tokens that are as many as CTAs of a cluster, more, fewer; tiles of uneven heights; x that is
      // streamed.
      {"batch", Batch{.norm = true, .activation = kSilu, .batch = {.tokens = 32, .split = 4}}, 1120, 336},
      {"batch_wide", Batch{.dtype = abi::KvDType::kF16, .batch = {.split = 4}}, 800, 144},
      {"batch_shared", Batch{.norm = true, .batch = {.tokens = 16, .split = 4}}, 800, 144},
      {"batch_few", Batch{.norm = true, .batch = {.tokens = 8, .split = 4, .stages = 3, .pieces = 4}}, 1376, 8},
      {"batch_streamed", Batch{.streamed = true, .batch = {.tokens = 32, .split = 2}}, 1376, 560},
      {"batch_streamed_norm", Batch{.norm = true, .streamed = true, .batch = {.tokens = 16, .split = 2}}, 1376, 1072},
  };
  for (const LinearCase& c : cases) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

}  // namespace fovea::emulator_test
