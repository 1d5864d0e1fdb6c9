// The rotary embedding of config.json: rope_theta beside rope_scaling, or rope_parameters as transformers 5 writes
// them.
#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "base/status.h"
#include "engine/model/config_read.h"

namespace fovea {
namespace {

Result<double> read_attention_factor(const JsonReader& json) {
  FOVEA_ASSIGN_OR_RETURN(const double factor, json.number_or("attention_factor", 0.0));
  if (factor < 0.0 || !std::isfinite(factor)) {
    return invalid_argument("{} is {}, expected a positive number", json.path("attention_factor"), factor);
  }
  return factor;
}

Status read_yarn(const JsonReader& json, const ModelConfig& config, RopeConfig& rope) {
  rope.kind = RopeKind::kYarn;
  FOVEA_ASSIGN_OR_RETURN(rope.original_max_position,
                         positive(json, "original_max_position_embeddings", config.max_position));
  FOVEA_ASSIGN_OR_RETURN(rope.beta_fast, positive(json, "beta_fast", 32.0));
  FOVEA_ASSIGN_OR_RETURN(rope.beta_slow, positive(json, "beta_slow", 1.0));
  FOVEA_ASSIGN_OR_RETURN(const bool truncate, json.boolean_or("truncate", true));
  if (!truncate) return unsupported("{} is false, expected true", json.path("truncate"));
  FOVEA_ASSIGN_OR_RETURN(rope.attention_factor, read_attention_factor(json));
  FOVEA_ASSIGN_OR_RETURN(const double mscale, json.number_or("mscale", 0.0));
  FOVEA_ASSIGN_OR_RETURN(const double mscale_all_dim, json.number_or("mscale_all_dim", 0.0));
  if (rope.attention_factor == 0.0) {
    const auto scaled = [&](double m) { return rope.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0; };
    rope.attention_factor =
        mscale > 0.0 && mscale_all_dim > 0.0 ? scaled(mscale) / scaled(mscale_all_dim) : scaled(1.0);
  }
  return ok_status();
}

Status read_llama3(const JsonReader& json, RopeConfig& rope) {
  rope.kind = RopeKind::kLlama3;
  FOVEA_RETURN_IF_ERROR(json.number("original_max_position_embeddings").status());
  FOVEA_ASSIGN_OR_RETURN(rope.original_max_position, positive(json, "original_max_position_embeddings", 8192.0));
  FOVEA_ASSIGN_OR_RETURN(rope.low_freq_factor, positive(json, "low_freq_factor", 1.0));
  FOVEA_ASSIGN_OR_RETURN(rope.high_freq_factor, positive(json, "high_freq_factor", 4.0));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return invalid_argument("{} is {}, expected more than low_freq_factor {}", json.path("high_freq_factor"),
                            rope.high_freq_factor, rope.low_freq_factor);
  }
  return ok_status();
}

// One divisor a pair of rotated dimensions.
Result<std::vector<double>> read_divisors(const JsonReader& json, std::string_view key, std::int32_t pairs) {
  const Json* list = json.find(key);
  if (list == nullptr || !list->is_array() || list->size() != static_cast<std::size_t>(pairs)) {
    return invalid_argument("{}: expected a list of {} numbers, half of the rotated dimensions", json.path(key), pairs);
  }
  std::vector<double> divisors;
  for (const Json& value : *list) {
    const double number = value.is_number() ? value.get<double>() : 0.0;
    if (!(number >= 1e-6 && number <= 1e6)) {
      return invalid_argument("{}[{}] is {}, expected a number from 1e-6 to 1e6", json.path(key), divisors.size(),
                              quote(value.dump()));
    }
    divisors.push_back(number);
  }
  return divisors;
}

// LongRoPE (2402.13753) as Phi-3 publishes it: two lists of divisors, one for contexts beyond the original length.
// document: config.json, which holds that length beside the lists or here.
Status read_longrope(const JsonReader& json, const JsonReader& document, ModelConfig& config, RopeConfig& rope) {
  rope.kind = RopeKind::kLongRope;
  const std::string_view original = "original_max_position_embeddings";
  const JsonReader& holder = document.has(original) ? document : json;
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t length, holder.integer(original, 2, 1 << 28));
  rope.original_max_position = static_cast<double>(length);
  double stretch = config.max_position / rope.original_max_position;
  if (!document.has(original)) {
    FOVEA_ASSIGN_OR_RETURN(stretch, positive(json, "factor", stretch));
  }
  FOVEA_ASSIGN_OR_RETURN(rope.attention_factor, read_attention_factor(json));
  if (rope.attention_factor == 0.0) {
    rope.attention_factor =
        stretch <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(stretch) / std::log(rope.original_max_position));
  }
  const std::int32_t pairs = rope.rotary_dim / 2;
  FOVEA_ASSIGN_OR_RETURN(config.short_context_divisors, read_divisors(json, "short_factor", pairs));
  FOVEA_ASSIGN_OR_RETURN(rope.frequency_divisors, read_divisors(json, "long_factor", pairs));
  if (config.max_position <= length) rope.frequency_divisors = config.short_context_divisors;
  return ok_status();
}

// json: rope_parameters or rope_scaling, or what they hold for one type of layer.
Status read_scaling(const JsonReader& json, const JsonReader& document, const RopeFields& fields, ModelConfig& config,
                    RopeConfig& rope) {
  FOVEA_ASSIGN_OR_RETURN(rope.theta, positive(json, "rope_theta", rope.theta));
  const std::string_view key = json.has("rope_type") ? "rope_type" : "type";
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string_or(key, "default"));
  if (type == "default") return ok_status();
  if (type == "longrope" || type == "su") return read_longrope(json, document, config, rope);
  if (type != "linear" && type != "llama3" && type != "yarn") {
    return unsupported("{} is {}, expected default, linear, llama3, yarn or longrope", json.path(key), quote(type));
  }
  FOVEA_RETURN_IF_ERROR(json.number("factor").status());
  FOVEA_ASSIGN_OR_RETURN(rope.factor, positive(json, "factor", 1.0));
  if (type == "llama3") return read_llama3(json, rope);
  if (type == "yarn") {
    FOVEA_RETURN_IF_ERROR(read_yarn(json, config, rope));
  } else {
    rope.kind = RopeKind::kLinear;
  }
  if (fields.by_layer) return ok_status();
  // max_position_embeddings is the context before these two stretch it (published configurations leave it so).
  const double stretched =
      rope.factor * (rope.kind == RopeKind::kYarn ? rope.original_max_position : config.max_position);
  config.max_position = static_cast<std::int32_t>(
      std::clamp(stretched, static_cast<double>(config.max_position), static_cast<double>(1 << 28)));
  return ok_status();
}

Result<double> partial_factor(const JsonReader& json, const RopeFields& fields, double fallback) {
  if (!fields.partial) return fallback;
  return positive(json, "partial_rotary_factor", fallback);
}

}  // namespace

Result<double> positive(const JsonReader& json, std::string_view key, double fallback) {
  FOVEA_ASSIGN_OR_RETURN(const double value, json.number_or(key, fallback));
  if (!(value > 0.0) || !std::isfinite(value)) {
    return invalid_argument("{} is {}, expected a positive number", json.path(key), value);
  }
  return value;
}

Status read_rope(const JsonReader& json, const RopeFields& fields, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  FOVEA_ASSIGN_OR_RETURN(rope.theta, positive(json, "rope_theta", fields.theta));
  // A file with both repeats itself.
  const std::string_view key = json.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  FOVEA_ASSIGN_OR_RETURN(double partial, partial_factor(json, fields, 1.0));
  std::optional<JsonReader> parameters;
  if (json.has(key)) {
    FOVEA_ASSIGN_OR_RETURN(parameters, json.child(key));
    FOVEA_ASSIGN_OR_RETURN(partial, partial_factor(*parameters, fields, partial));
  }
  rope.rotary_dim = static_cast<std::int32_t>(static_cast<double>(config.head_dim) * std::min(partial, 1.0));
  if (rope.rotary_dim % 2 != 0 || rope.rotary_dim == 0) {
    return invalid_argument("{}: rotary embedding needs an even number of dimensions, but head_dim {} gives {}",
                            json.where(), config.head_dim, rope.rotary_dim);
  }
  const bool typed = parameters && (parameters->has("full_attention") || parameters->has("sliding_attention"));
  if (typed && !fields.by_layer) {
    return unsupported("{} differs by layer type, expected one set for all layers", parameters->where());
  }
  if (fields.by_layer) {
    config.window_rope.emplace();
    config.window_rope->rotary_dim = rope.rotary_dim;
    FOVEA_ASSIGN_OR_RETURN(config.window_rope->theta, positive(json, "rope_local_base_freq", 10000.0));
  }
  if (!typed) return parameters ? read_scaling(*parameters, json, fields, config, rope) : ok_status();
  FOVEA_ASSIGN_OR_RETURN(const JsonReader full, parameters->child("full_attention"));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader sliding, parameters->child("sliding_attention"));
  FOVEA_RETURN_IF_ERROR(read_scaling(full, json, fields, config, rope));
  return read_scaling(sliding, json, fields, config, *config.window_rope);
}

}  // namespace fovea
