// An attention variant of your own: what a block computes, written as functors in C++ text that is compiled when it is
// first used, for a CUDA device and for the CPU alike. docs/variants.md shows the hooks and a gallery.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

enum class VariantParamType : std::uint8_t {
  kFloat,        // float
  kInt,          // int
  kFloatTensor,  // const float*, in memory of the device that runs the variant
  kIntTensor,    // const int*
};

struct VariantParam {
  std::string name;  // a C++ identifier; hooks read it as p.NAME
  VariantParamType type = VariantParamType::kFloat;
};

// The value of a parameter of a variant.
struct VariantValue {
  std::string name;
  double number = 0.0;     // kFloat, kInt
  TensorView tensor = {};  // kFloatTensor: f32, kIntTensor: i32, contiguous, of any shape; on the attention's device
};

// The text stands in namespace fovea::variant::user, so the names of src/variant (Plain, LogitPlace, ..) need no
// prefix, and hooks take `const Params& p`, which has the fields of AttentionParams and those of `params`.
struct VariantSpec {
  std::string name;    // of the struct that the source defines
  std::string source;  // C++ text; empty: a variant that src/variant ships
  std::string file;    // what errors name as the place of the source; empty: "variant NAME"
  std::vector<VariantParam> params;
};

// The variant whose text is in a file, such as a header of yours. kNotFound, or kOutOfRange beyond 1 MiB.
Result<VariantSpec> read_variant(const std::string& path, const std::string& name, std::vector<VariantParam> params);

// Names are identifiers, parameters do not repeat or hide those of AttentionParams, and all fit into an argument.
Status check_variant(const VariantSpec& spec);

}  // namespace fovea
