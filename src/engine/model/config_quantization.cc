// The quantization_config of config.json: which fp8 checkpoints can be loaded. Called by config.cc. What a matrix is,
// its tensors say (fp8_weights.h); here what would be read wrongly is refused by name, before anything is opened.
#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "engine/model/config_read.h"

namespace fovea {
namespace {

constexpr std::string_view kWhatLoads =
    "fp8_e4m3 weights with a scale a tensor, a channel or a block of 128 x 128 can be loaded, and bf16, f16 and f32";

// An object like {"num_bits": 8, "type": "float", ..}.
Status check_float8(const JsonReader& numbers) {
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t bits, numbers.integer_or("num_bits", 8));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, numbers.string_or("type", "int"));
  if (bits != 8 || type != "float") {
    return unsupported("{} are {} of {} bits; {}", numbers.where(), quote(type), bits, kWhatLoads);
  }
  return ok_status();
}

Status check_block(const JsonReader& json, std::string_view key) {
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int64_t> block, json.integers(key));
  if (block == std::vector<std::int64_t>{128, 128}) return ok_status();
  return unsupported("{} is [{}]; {}", json.path(key), fmt::join(block, ", "), kWhatLoads);
}

Status check_format(const JsonReader& json) {
  FOVEA_ASSIGN_OR_RETURN(const std::string format, json.string_or("format", "float-quantized"));
  if (format == "float-quantized" || format == "naive-quantized") return ok_status();
  return unsupported("{} is {}; {}", json.path("format"), quote(format), kWhatLoads);
}

// A group of matrices: its scheme written out, or {"FP8_DYNAMIC": targets}.
Status check_group(const JsonReader& groups, const std::string& name) {
  if (groups.json().at(name).is_array()) {
    if (name == "FP8" || name == "FP8_DYNAMIC" || name == "FP8_BLOCK") return ok_status();
    return unsupported("{} is a scheme {}; {}", groups.path(name), quote(name), kWhatLoads);
  }
  FOVEA_ASSIGN_OR_RETURN(const JsonReader group, groups.child(name));
  FOVEA_RETURN_IF_ERROR(check_format(group));
  if (!group.has("weights")) return unsupported("{} is absent; {}", group.path("weights"), kWhatLoads);
  FOVEA_ASSIGN_OR_RETURN(const JsonReader weights, group.child("weights"));
  FOVEA_RETURN_IF_ERROR(check_float8(weights));
  FOVEA_ASSIGN_OR_RETURN(const std::string strategy, weights.string_or("strategy", "tensor"));
  if (strategy == "block") {
    FOVEA_RETURN_IF_ERROR(check_block(weights, "block_structure"));
  } else if (strategy != "tensor" && strategy != "channel") {
    return unsupported("{} is {}; {}", weights.path("strategy"), quote(strategy), kWhatLoads);
  }
  FOVEA_ASSIGN_OR_RETURN(const bool symmetric, weights.boolean_or("symmetric", true));
  if (!symmetric) return unsupported("{} is false; {}", weights.path("symmetric"), kWhatLoads);
  if (group.has("input_activations")) {
    FOVEA_ASSIGN_OR_RETURN(const JsonReader activations, group.child("input_activations"));
    FOVEA_RETURN_IF_ERROR(check_float8(activations));
  }
  if (group.has("output_activations")) {
    return unsupported("{} is set: outputs are not quantized here", group.path("output_activations"));
  }
  return ok_status();
}

}  // namespace

Status check_quantization(const JsonReader& config) {
  if (!config.has("quantization_config")) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, config.child("quantization_config"));
  if (!json.has("quant_method")) return unsupported("{} has no quant_method; {}", json.where(), kWhatLoads);
  FOVEA_ASSIGN_OR_RETURN(const std::string method, json.string("quant_method"));
  if (method == "fp8") {
    FOVEA_ASSIGN_OR_RETURN(const std::string scheme, json.string_or("activation_scheme", "dynamic"));
    if (scheme != "dynamic" && scheme != "static") {
      return unsupported("{} is {}, expected dynamic or static", json.path("activation_scheme"), quote(scheme));
    }
    FOVEA_ASSIGN_OR_RETURN(const std::string format, json.string_or("fmt", "e4m3"));
    if (format != "e4m3") return unsupported("{} is {}; {}", json.path("fmt"), quote(format), kWhatLoads);
    return json.has("weight_block_size") ? check_block(json, "weight_block_size") : ok_status();
  }
  if (method != "compressed-tensors") {
    return unsupported("{} is {}, expected compressed-tensors or fp8; {}", json.path("quant_method"), quote(method),
                       kWhatLoads);
  }
  FOVEA_RETURN_IF_ERROR(check_format(json));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader groups, json.child("config_groups"));
  for (const auto& [name, group] : groups.json().items()) FOVEA_RETURN_IF_ERROR(check_group(groups, name));
  return ok_status();
}

}  // namespace fovea
