// A user's attention variant: functors as text, extra parameters by name. The same text compiles for a device and for
// the CPU. Made by users through the public API; turned into source by attention_spec.h and cpu/attention's compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/status.h"
#include "variant/params.h"

namespace fovea::jit {

enum class VariantParamType : std::uint8_t {
  kFloat,        // float
  kInt,          // int
  kFloatTensor,  // const float*, in memory of the device that runs the variant
  kIntTensor,    // const int*
};

struct VariantParam {
  std::string name;  // a C++ identifier; hooks read it as p.NAME
  VariantParamType type;
};

// The text stands in namespace fovea::variant::user, so the names of src/variant (Plain, LogitPlace, ..) need no
// prefix, and hooks take `const Params& p`, which has the fields of AttentionParams and those of `params`.
struct VariantSpec {
  std::string name;    // of the struct that the source defines
  std::string source;  // C++ text; empty: a variant that src/variant ships
  std::string file;    // what errors name as the place of the source; empty: "variant NAME"
  std::vector<VariantParam> params;
};

// A variant of the list in variant/params.h.
VariantSpec shipped_variant(VariantId id);
// The variant whose text is in a file, such as a header of the user's. kNotFound, or kOutOfRange beyond 1 MiB.
Result<VariantSpec> read_variant(const std::string& path, const std::string& name, std::vector<VariantParam> params);

// Names are identifiers, parameters do not repeat or hide those of AttentionParams, and all fit into an argument.
Status check_variant(const VariantSpec& spec);

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
