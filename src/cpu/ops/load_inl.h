// Vector loads of stored weights as fp32, for the operators of this folder. Included inside Highway's per-target
// passes.
#if defined(FOVEA_CPU_OPS_LOAD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_CPU_OPS_LOAD_INL_H
#undef FOVEA_CPU_OPS_LOAD_INL_H
#else
#define FOVEA_CPU_OPS_LOAD_INL_H
#endif

#include <hwy/highway.h>

#include "base/half.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {

// Storage types as tags: at(i) is one element, load(d, i) a vector of them, both as fp32.
struct StoredF32 {
  const float* data;
  explicit StoredF32(const void* p) : data(static_cast<const float*>(p)) {}
  float at(std::int64_t i) const { return data[i]; }
  template <class D>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load(D d, std::int64_t i) const {
    return hwy::HWY_NAMESPACE::LoadU(d, data + i);
  }
};
struct StoredBf16 {
  const std::uint16_t* data;
  explicit StoredBf16(const void* p) : data(static_cast<const std::uint16_t*>(p)) {}
  float at(std::int64_t i) const { return bf16_to_float(data[i]); }
  template <class D>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load(D d, std::int64_t i) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, data + i))));
  }
};
struct StoredF16 {
  const std::uint16_t* data;
  explicit StoredF16(const void* p) : data(static_cast<const std::uint16_t*>(p)) {}
  float at(std::int64_t i) const { return f16_to_float(data[i]); }
  template <class D>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load(D d, std::int64_t i) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(data + i)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
