// How long the pieces may be in which kernels access a tensor. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

// Longest run (8, 4, 2 or 1 elements) whose accesses, of at most 16 bytes each, are aligned wherever a row starts.
// Strides are in elements.
constexpr uint32_t aligned_run(uint64_t address, long long stride, long long other_stride, uint32_t element_bytes) {
  const uint64_t bits =
      address | static_cast<uint64_t>(stride * element_bytes) | static_cast<uint64_t>(other_stride * element_bytes);
  uint32_t run = 8;
  while (run > 1 && bits % (run * element_bytes < 16 ? run * element_bytes : 16) != 0) run /= 2;
  return run;
}

#if !defined(__CUDACC_RTC__)
inline uint32_t aligned_run(const void* start, long long stride, long long other_stride, uint32_t element_bytes) {
  return aligned_run(reinterpret_cast<uint64_t>(start), stride, other_stride, element_bytes);
}
#endif

}  // namespace fovea::abi
