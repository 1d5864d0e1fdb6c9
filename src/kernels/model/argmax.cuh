// fovea_argmax: the token of the largest logit of each row, the smallest of equals. Several CTAs a row; each raises the
// row's key, in which the order of keys is that of logits, and the last of them writes the token and leaves key and
// counter as it found them. Launched by device/cuda; arguments in abi/op_args.h.
#pragma once

#include "abi/op_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// Larger for larger numbers, then for smaller tokens; NaN is larger than all numbers.
__forceinline__ uint64_t logit_key(float logit, uint32_t token) {
  const uint32_t bits = float_as_bits(logit);
  const uint32_t ordered = (bits & 0x7fffffffu) > 0x7f800000u ? ~0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (~0u - token);
}

__forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

template <uint32_t kVec>
__forceinline__ void argmax(const abi::ArgmaxArgs& args, uint64_t* keys) {
  wait_for_inputs();
  const uint32_t row = blockIdx.x / args.parts, part = blockIdx.x - row * args.parts;
  uint64_t key = 0;
  const uint32_t step = args.parts * blockDim.x * kVec;
#pragma unroll 4
  for (uint32_t i = (part * blockDim.x + threadIdx.x) * kVec; i < args.width; i += step) {
    float x[kVec];
    unpack(load<KvDType::kF32, kVec>(args.logits, row * args.stride + i), x);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) key = larger(key, logit_key(x[e], i + e));
  }
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2) {
    key = larger(key, __shfl_xor_sync(~0u, static_cast<unsigned long long>(key), distance));
  }
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t warp = 1; warp < blockDim.x / 32; ++warp) key = larger(key, keys[warp]);
  abi::ArgmaxRow& shared = args.rows_state[row];
  keep_maximum(&shared.key, key);
  __threadfence();
  if (add_to(&shared.arrived, 1) + 1 != args.parts) return;
  __threadfence();
  const uint64_t best = atomicExch(reinterpret_cast<unsigned long long*>(&shared.key), 0ull);
  shared.arrived = 0;
  const uint32_t ordered = static_cast<uint32_t>(best >> 32);
  // The keys of -inf, +inf and NaN.
  const bool finite = ordered > 0x007fffffu && ordered < 0xff800000u;
  args.best[row] = finite ? static_cast<int32_t>(~0u - static_cast<uint32_t>(best)) : -1;
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_ARGMAX)
extern "C" __global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_argmax(const __grid_constant__ fovea::abi::ArgmaxArgs args) {
  __shared__ uint64_t keys[fovea::abi::kOpThreads / 32];
  fovea::kernels::argmax<FOVEA_VEC>(args, keys);
}
#endif
