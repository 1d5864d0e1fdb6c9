// The shipped variants, compiled for every SIMD target.
#include "cpu/attention/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/attention_variants.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention/executor_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

AttentionKernels shipped_kernels(VariantId id) {
  switch (id) {
    case VariantId::kPlain: break;
    case VariantId::kSoftcap: return kernels_of<variant::Softcap>();
    case VariantId::kSinks: return kernels_of<variant::Sinks>();
    case VariantId::kSoftcapSinks: return kernels_of<variant::SoftcapSinks>();
    case VariantId::kAlibi: return kernels_of<variant::Alibi>();
    case VariantId::kSigmoid: return kernels_of<variant::Sigmoid>();
  }
  return kernels_of<variant::Plain>();
}

void* shared_format_ops() {
  using Function = const FormatOps& (*)(abi::KvDType, AttentionProducts);
  return reinterpret_cast<void*>(Function{&format_ops});
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
HWY_EXPORT(shipped_kernels);
HWY_EXPORT(shared_format_ops);

AttentionKernels attention_kernels(VariantId variant) { return HWY_DYNAMIC_DISPATCH(shipped_kernels)(variant); }

void* format_ops_in_use() { return HWY_DYNAMIC_DISPATCH(shared_format_ops)(); }

}  // namespace fovea::cpu
#endif
