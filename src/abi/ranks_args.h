// Arguments of fovea_all_reduce, and the memory that the GPUs of several ranks reach in each other for it. Shared by
// device/cuda and kernels/model.
#pragma once

#include "abi/kv_pool.h"

namespace fovea::abi {

inline constexpr uint32_t kMostPeers = 8;
inline constexpr uint32_t kReduceThreads = 256;
// A CTA reduces what its threads access once, 16 bytes each, and always has the same part of a region.
inline constexpr uint32_t kReduceCtaBytes = kReduceThreads * 16;
inline constexpr uint32_t kMostReduceCtas = 256;

// The region of a rank; zero at first. Others write into it what they add, in the half that the CTA's epoch chooses,
// then the epoch. epochs is the rank's own.
struct ReduceRegion {
  uint32_t arrived[kMostReduceCtas][kMostPeers];  // epochs of the others
  uint32_t epochs[kMostReduceCtas];
  alignas(16) uint8_t data[2][kMostReduceCtas][kMostPeers][kReduceCtaBytes];
};

// fovea_all_reduce: a CTA for every kReduceCtaBytes of x.
struct AllReduceArgs {
  void* x;                            // the sum of all ranks' x
  ReduceRegion* regions[kMostPeers];  // by rank
  uint64_t elements;                  // whole accesses of 16 bytes
  uint32_t rank, size;
};

}  // namespace fovea::abi
