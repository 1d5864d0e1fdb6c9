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
  static FOVEA_VARIANT_INLINE F tanh(F x) { return tanhf(x); }
  static FOVEA_VARIANT_INLINE F rcp(F x) { return 1.0f / x; }
  static FOVEA_VARIANT_INLINE F max(F x, F y) { return x > y ? x : y; }
  static FOVEA_VARIANT_INLINE B less(F x, F y) { return x < y; }
  static FOVEA_VARIANT_INLINE B always() { return true; }
};

}  // namespace fovea::variant
