// A user's attention variant (fovea/variant.h) as source: the same text for a device and for the CPU. Used by
// attention_spec.h and by cpu/attention's compiler of variants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/status.h"
#include "fovea/variant.h"
#include "variant/params.h"

namespace fovea::jit {

using fovea::VariantParam;
using fovea::VariantParamType;
using fovea::VariantSpec;

// A variant of the list in variant/params.h.
VariantSpec shipped_variant(VariantId id);
// Whether the text may have a hook `key` or `value`, or `query`: some instantiations are made differently then.
bool may_transform_kv(const VariantSpec& spec);
bool may_transform_q(const VariantSpec& spec);

// Declares the variant. Target is the namespace below fovea::variant that holds Plain ("" or "::N_AVX2"), math the
// number type's functions ("ScalarMath"). Line numbers in errors are those of spec.source.
std::string variant_source(const VariantSpec& spec, std::string_view target, std::string_view math);
// The C++ name of the type that variant_source() leaves.
std::string variant_type(const VariantSpec& spec, std::string_view target);

// The values of a variant's parameters, laid out as its hooks read them.
class VariantArgs {
 public:
  // kInvalidArgument as check_variant.
  static Result<VariantArgs> create(const VariantSpec& spec);

  // The parameters that all variants have: sm_scale and those of the shipped variants.
  AttentionParams& shipped() { return *reinterpret_cast<AttentionParams*>(bytes_.data()); }
  const AttentionParams& shipped() const { return *reinterpret_cast<const AttentionParams*>(bytes_.data()); }

  // kNotFound lists the names there are, kInvalidArgument says the declared type. An int may be given for a float.
  Status set(std::string_view name, double value);
  Status set(std::string_view name, int value);
  Status set(std::string_view name, const float* tensor);
  Status set(std::string_view name, const std::int32_t* tensor);

  // kInvalidArgument names the parameters that were never set.
  Status check() const;
  // What AttentionArgs::variant_params takes; 8-byte aligned.
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)).first(size_bytes_); }

 private:
  struct Field {
    VariantParam param;
    std::size_t offset;
    bool is_set;
  };
  VariantArgs() = default;
  Status store(std::string_view name, VariantParamType type, const void* value, std::size_t size_bytes);

  std::vector<std::uint64_t> bytes_;
  std::size_t size_bytes_ = 0;
  std::vector<Field> fields_;
};

}  // namespace fovea::jit
