// The few instructions that append and merge need and C++ has no name for: conversions between fp32 and the storage
// types, two elements at a time, rounding to nearest even. Device code only; tests/kernels has the same functions for
// the host, so that everything above this file also runs there.
#pragma once

#include "abi/plan.h"

#if defined(__CUDACC_RTC__)

namespace fovea::kernels {

__forceinline__ uint32_t f16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__forceinline__ float f16_low(uint32_t pair) {
  float x;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(x) : "r"(pair));
  return x;
}

__forceinline__ float bits_as_float(uint32_t bits) { return __uint_as_float(bits); }
__forceinline__ uint32_t float_as_bits(float x) { return __float_as_uint(x); }

#if __CUDA_ARCH__ >= 890
#define FOVEA_HAS_E4M3_CONVERSION 1
// Beyond the largest number (448): that number. NaN stays NaN.
__forceinline__ uint32_t e4m3_pair_fast(float low, float high) {
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}
#endif

__forceinline__ float log2_of(float x) { return log2f(x); }
__forceinline__ float exp2_of(float x) { return exp2f(x); }
__forceinline__ float fma_of(float x, float y, float z) { return __fmaf_rn(x, y, z); }
__forceinline__ float product(float x, float y) { return __fmul_rn(x, y); }  // never fused with an addition
__forceinline__ float nearest_integer(float x) { return rintf(x); }
__forceinline__ void keep_maximum(uint32_t* word, uint32_t value) { atomicMax(word, value); }
// The same for the values of all lanes of a warp, which come here together.
__forceinline__ void warp_keep_maximum(uint32_t* word, uint32_t value) {
  value = __reduce_max_sync(~0u, value);
  if (threadIdx.x % 32 == 0) atomicMax(word, value);
}
__forceinline__ void keep_maximum(uint64_t* word, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}
__forceinline__ uint32_t add_to(uint32_t* word, uint32_t value) { return atomicAdd(word, value); }  // what was there
__forceinline__ void add_one(uint32_t* word) { atomicAdd(word, 1u); }
// The same for the values of all lanes of a warp, which come here together.
__forceinline__ void warp_add(uint32_t* word, uint32_t value) {
  value = __reduce_add_sync(~0u, value);
  if (threadIdx.x % 32 == 0 && value != 0) atomicAdd(word, value);
}
__forceinline__ void warp_sum_add(int32_t* word, int32_t value) {
  value = __reduce_add_sync(~0u, value);
  if (threadIdx.x % 32 == 0) atomicAdd(word, value);
}
__forceinline__ void warp_fence() { __syncwarp(); }
__forceinline__ uint32_t count_bits(uint32_t word) { return __popc(word); }
__forceinline__ uint32_t lowest_bit(uint32_t word) { return __ffs(word) - 1; }

// Programmatic dependent launch: waits for the kernels before this one, and lets the next one start its prologue. Does
// nothing in launches that do not ask for it.
__forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace fovea::kernels

#endif
