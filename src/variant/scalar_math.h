// The variants' number type for scalar code: what device code passes as `M`, and host code that wants one logit at a
// time. Compiles under g++ and NVRTC.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#define FOVEA_VARIANT_INLINE inline
#else
#define FOVEA_VARIANT_INLINE __device__ __forceinline__
#endif

namespace fovea::variant {

struct ScalarMath {
  using F = float;
  using B = bool;
  static FOVEA_VARIANT_INLINE F set(float x) { return x; }
  static FOVEA_VARIANT_INLINE F exp2(F x) { return exp2f(x); }
#if defined(__CUDACC_RTC__)
  // 1 - 2 / (1 + e^2x): off by some 1e-7 absolutely, at 5 instructions; tanhf takes 30.
  static FOVEA_VARIANT_INLINE F tanh(F x) {
    F power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(2.0f * 1.4426950408889634f * x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return 1.0f - 2.0f * inverse;
  }
#else
  static FOVEA_VARIANT_INLINE F tanh(F x) { return tanhf(x); }
#endif
  static FOVEA_VARIANT_INLINE F rcp(F x) { return 1.0f / x; }
  static FOVEA_VARIANT_INLINE F max(F x, F y) { return x > y ? x : y; }
  static FOVEA_VARIANT_INLINE B less(F x, F y) { return x < y; }
  static FOVEA_VARIANT_INLINE B always() { return true; }
};

}  // namespace fovea::variant
