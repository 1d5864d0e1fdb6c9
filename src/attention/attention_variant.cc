// Which variant the options of an Attention ask for, and the values of its parameters.
#include <cmath>

#include "attention/attention_checks.h"
#include "attention/paged_attention.h"
#include "base/status.h"

namespace fovea {
namespace {

Result<VariantId> shipped_id(const AttentionOptions& o) {
  const bool sinks = !is_empty(o.sinks);
  const bool slopes = !is_empty(o.alibi_slopes);
  if (int{slopes} + int{o.sigmoid} + int{sinks || o.softcap > 0.0f} > 1) {
    return unsupported("alibi_slopes and sigmoid combine with nothing else; softcap combines with sinks");
  }
  if (slopes) return VariantId::kAlibi;
  if (o.sigmoid) return VariantId::kSigmoid;
  if (o.softcap > 0.0f) return sinks ? VariantId::kSoftcapSinks : VariantId::kSoftcap;
  return sinks ? VariantId::kSinks : VariantId::kPlain;
}

Status check_own(const AttentionOptions& o) {
  FOVEA_RETURN_IF_ERROR(check_variant(o.variant));
  if (o.variant.source.empty()) {
    return invalid_argument(
        "variant {} has no source; those that ship are chosen by softcap, sinks, alibi_slopes and "
        "sigmoid",
        o.variant.name);
  }
  if (o.sigmoid) return unsupported("sigmoid does not combine with a variant of your own; set kSoftmax in it");
  return ok_status();
}

Status set_value(const VariantSpec& spec, const VariantValue& value, DevicePlace place, jit::VariantArgs& args) {
  for (const VariantParam& param : spec.params) {
    if (param.name != value.name) continue;
    switch (param.type) {
      case VariantParamType::kFloat: return args.set(value.name, value.number);
      case VariantParamType::kInt:
        if (value.number != std::trunc(value.number) || std::abs(value.number) > 2147483647.0) {
          return invalid_argument("parameter {} is {}, expected an int", value.name, value.number);
        }
        return args.set(value.name, static_cast<int>(value.number));
      case VariantParamType::kFloatTensor:
      case VariantParamType::kIntTensor: break;
    }
    const bool is_float = param.type == VariantParamType::kFloatTensor;
    const TensorView& tensor = value.tensor;
    if (tensor.data == nullptr) return invalid_argument("parameter {} is a tensor without memory", value.name);
    FOVEA_RETURN_IF_ERROR(check_contiguous(value.name.c_str(), tensor, is_float ? DType::kF32 : DType::kI32, place));
    return is_float ? args.set(value.name, static_cast<const float*>(tensor.data))
                    : args.set(value.name, static_cast<const std::int32_t*>(tensor.data));
  }
  return args.set(value.name, value.number);  // says which names there are
}

}  // namespace

Result<VariantSpec> variant_spec(const AttentionOptions& o) {
  if (!o.variant.name.empty()) {
    FOVEA_RETURN_IF_ERROR(check_own(o));
    return o.variant;
  }
  if (!o.variant.source.empty()) return invalid_argument("the variant has a source but no name: that of its struct");
  FOVEA_ASSIGN_OR_RETURN(const VariantId id, shipped_id(o));
  return jit::shipped_variant(id);
}

Status set_run_values(const AttentionOptions& o, const AttentionParams& made, const RunValues& values,
                      AttentionParams& params) {
  if (!std::isfinite(values.logit_scale)) {
    return invalid_argument("logit_scale is {}, expected a finite number", values.logit_scale);
  }
  params.sm_scale = made.sm_scale * values.logit_scale;
  params.sinks = made.sinks;
  if (is_empty(values.sinks)) return ok_status();
  if (is_empty(o.sinks)) {
    return invalid_argument("run() was given sinks, the attention was made without; give AttentionOptions::sinks");
  }
  FOVEA_ASSIGN_OR_RETURN(const DevicePlace place, parse_device(o.device));
  FOVEA_RETURN_IF_ERROR(check_array("sinks", values.sinks, {o.num_qo_heads}, DType::kF32, place));
  params.sinks = static_cast<const float*>(values.sinks.data);
  return ok_status();
}

Result<VariantChoice> choose_variant(const AttentionOptions& o) {
  FOVEA_ASSIGN_OR_RETURN(const DevicePlace place, parse_device(o.device));
  FOVEA_ASSIGN_OR_RETURN(VariantSpec spec, variant_spec(o));
  VariantId id = VariantId::kPlain;
  if (spec.source.empty()) {
    FOVEA_ASSIGN_OR_RETURN(id, shipped_id(o));
  }
  FOVEA_ASSIGN_OR_RETURN(jit::VariantArgs args, jit::VariantArgs::create(spec));
  AttentionParams& params = args.shipped();
  params.sm_scale = o.sm_scale != 0.0f ? o.sm_scale : 1.0f / std::sqrt(static_cast<float>(o.head_dim));
  params.softcap = o.softcap;
  params.sigmoid_bias = o.sigmoid_bias;
  if (!is_empty(o.sinks)) {
    FOVEA_RETURN_IF_ERROR(check_array("sinks", o.sinks, {o.num_qo_heads}, DType::kF32, place));
    params.sinks = static_cast<const float*>(o.sinks.data);
  }
  if (!is_empty(o.alibi_slopes)) {
    FOVEA_RETURN_IF_ERROR(check_array("alibi_slopes", o.alibi_slopes, {o.num_qo_heads}, DType::kF32, place));
    params.alibi_slopes = static_cast<const float*>(o.alibi_slopes.data);
  }
  for (const VariantValue& value : o.variant_values) FOVEA_RETURN_IF_ERROR(set_value(spec, value, place, args));
  FOVEA_RETURN_IF_ERROR(args.check());
  return VariantChoice{std::move(spec), id, std::move(args)};
}

}  // namespace fovea
