// Implementation of json_util.h.
#include "engine/tokenizer/json_util.h"

#include <algorithm>
#include <fstream>

namespace fovea::json_util {
namespace {

// Deepest nesting of arrays and objects, outside strings; a scan, so that a hostile file is refused before it is
// parsed.
std::size_t nesting(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> parse(std::string_view text, std::string_view what, const Limits& limits) {
  if (text.size() > limits.max_bytes) {
    return out_of_range("{} has {} bytes, expected at most {}", what, text.size(), limits.max_bytes);
  }
  const std::size_t depth = nesting(text);
  if (depth > limits.max_depth) {
    return invalid_argument("{} nests {} levels deep, expected at most {}", what, depth, limits.max_depth);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    return invalid_argument("{} is not valid JSON: {}", what, error.what());
  }
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return not_found("cannot open {}", path);
  const auto size = static_cast<std::streamoff>(file.tellg());
  if (size < 0) return data_loss("cannot read the size of {}", path);
  if (static_cast<std::size_t>(size) > max_bytes) {
    return out_of_range("{} has {} bytes, expected at most {}", path, size, max_bytes);
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.seekg(0);
  file.read(text.data(), size);
  if (file.gcount() != size) return data_loss("{}: read {} of {} bytes", path, file.gcount(), size);
  return text;
}

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

}  // namespace fovea::json_util
