// Vector maths of the attention kernels: exp2 and tanh to about one unit in the last place, and the number type that
// variants are written over. Included once per SIMD target.
#if defined(FOVEA_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_CPU_ATTENTION_MATH_INL_H_
#undef FOVEA_CPU_ATTENTION_MATH_INL_H_
#else
#define FOVEA_CPU_ATTENTION_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "cpu/attention/item.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using MF = hn::Mask<DF>;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// 2^x for any x; 0 below 2^-126, infinity from 2^128. Degree 6 on [-0.5, 0.5] (interpolated at Chebyshev nodes,
// relative error 5e-9 before rounding).
HWY_INLINE VF exp2_vec(VF x) {
  const DF d;
  const DI di;
  const auto lowest = hn::Set(d, -126.0f);
  const auto highest = hn::Set(d, 128.0f);
  const auto clamped = hn::Min(hn::Max(x, lowest), hn::Set(d, 127.0f));
  const auto whole = hn::Round(clamped);
  const auto f = hn::Sub(clamped, whole);
  auto p = hn::Set(d, 0.0001545316294512069f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013390863364671234f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618082557277852f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550357114219078f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022650760568126f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471880262288f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto bits = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, whole)));
  auto y = hn::IfThenElseZero(hn::Ge(x, lowest), hn::BitCast(d, bits));
  y = hn::IfThenElse(hn::Ge(x, highest), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// For x <= 0, where most weights are: no need for the upper end. NaN becomes 0 or NaN.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF d;
  const DI di;
  const auto lowest = hn::Set(d, -126.0f);
  const auto clamped = hn::Max(x, lowest);
  const auto whole = hn::Round(clamped);
  const auto f = hn::Sub(clamped, whole);
  auto p = hn::Set(d, 0.0001545316294512069f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013390863364671234f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618082557277852f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550357114219078f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022650760568126f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471880262288f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto bits = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, whole)));
  return hn::IfThenElseZero(hn::Ge(x, lowest), hn::BitCast(d, bits));
}

// An odd polynomial near 0, where the exponential form would cancel; 1 - 2 / (e^2|x| + 1) elsewhere.
HWY_INLINE VF tanh_vec(VF x) {
  const DF d;
  const auto size = hn::Abs(x);
  const auto u = hn::Mul(x, x);
  auto p = hn::Set(d, 0.002214902742504058f);
  p = hn::MulAdd(p, u, hn::Set(d, -0.008272456732589646f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.021746187089059184f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.05395634939676749f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.13333290745796622f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.3333333308402023f));
  const auto near_zero = hn::MulAdd(hn::Mul(x, u), p, x);
  const auto e = exp2_vec(hn::Mul(size, hn::Set(d, 2.885390081777927f)));
  const auto one = hn::Set(d, 1.0f);
  const auto far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.65f)), near_zero, hn::CopySign(far, x));
}

// A vector with operators, for variants.
struct SimdF {
  VF v;
  friend HWY_INLINE SimdF operator+(SimdF a, SimdF b) { return {hn::Add(a.v, b.v)}; }
  friend HWY_INLINE SimdF operator-(SimdF a, SimdF b) { return {hn::Sub(a.v, b.v)}; }
  friend HWY_INLINE SimdF operator*(SimdF a, SimdF b) { return {hn::Mul(a.v, b.v)}; }
  friend HWY_INLINE SimdF operator/(SimdF a, SimdF b) { return {hn::Div(a.v, b.v)}; }
};

struct SimdMath {
  using F = SimdF;
  using B = MF;
  static HWY_INLINE F set(float x) { return {hn::Set(DF(), x)}; }
  static HWY_INLINE F exp2(F x) { return {exp2_vec(x.v)}; }
  static HWY_INLINE F tanh(F x) { return {tanh_vec(x.v)}; }
  static HWY_INLINE F rcp(F x) { return {hn::Div(hn::Set(DF(), 1.0f), x.v)}; }
  static HWY_INLINE F max(F x, F y) { return {hn::Max(x.v, y.v)}; }
  static HWY_INLINE B less(F x, F y) { return hn::Lt(x.v, y.v); }
  static HWY_INLINE B always() { return hn::FirstN(DF(), hn::Lanes(DF())); }
};

HWY_INLINE float max_of(VF v) { return hn::GetLane(hn::MaxOfLanes(DF(), v)); }
HWY_INLINE float sum_of(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }

// Lane i is bit (first + i) of bits.
HWY_INLINE MF mask_from(uint64_t bits, int first) {
  const uint64_t shifted = bits >> first;
  uint8_t bytes[8];
  std::memcpy(bytes, &shifted, sizeof(bytes));
  return hn::LoadMaskBits(DF(), bytes);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_CPU_ATTENTION_MATH_INL_H_
