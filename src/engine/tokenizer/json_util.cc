// Implementation of json_util.h.
#include "engine/tokenizer/json_util.h"

namespace fovea::json_util {
const nlohmann::json& field(const nlohmann::json& object, const char* name) {
  static const nlohmann::json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

Result<bool> bool_field(const nlohmann::json& object, const char* name, bool fallback, std::string_view where) {
  const nlohmann::json& value = field(object, name);
  if (value.is_null()) return fallback;
  if (!value.is_boolean())
    return invalid_argument("{}: '{}' is a {}, expected a boolean", where, name, value.type_name());
  return value.get<bool>();
}

Result<std::string> string_field(const nlohmann::json& object, const char* name, std::string_view fallback,
                                 std::string_view where) {
  const nlohmann::json& value = field(object, name);
  if (value.is_null()) return std::string(fallback);
  if (!value.is_string())
    return invalid_argument("{}: '{}' is a {}, expected a string", where, name, value.type_name());
  return value.get<std::string>();
}

Result<std::string> required_string(const nlohmann::json& object, const char* name, std::string_view where) {
  const nlohmann::json& value = field(object, name);
  if (!value.is_string())
    return invalid_argument("{}: '{}' is a {}, expected a string", where, name, value.type_name());
  return value.get<std::string>();
}

Result<const nlohmann::json*> sequence_parts(const nlohmann::json& spec, const char* name, int depth,
                                             std::string_view where) {
  constexpr int kMaxDepth = 8;
  const nlohmann::json& parts = field(spec, name);
  if (!parts.is_array()) return invalid_argument("{}: '{}' must be an array", where, name);
  if (depth > kMaxDepth) return invalid_argument("{}: nests deeper than {}", where, kMaxDepth);
  return &parts;
}

}  // namespace fovea::json_util
