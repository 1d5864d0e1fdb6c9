// Limits, parsing and typed reads behind base/json.h.
#include "base/json.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

// Deepest nesting of brackets outside strings; an upper bound of the parser's depth, found without recursion.
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// The parser's message without the library's error number: "[json.exception.parse_error.101] parse error at ..." ->
// "...".
std::string_view plain_message(const Json::exception& error) {
  std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return text.starts_with("[json.") && end != std::string_view::npos ? text.substr(end + 2) : text;
}

Result<std::int64_t> to_integer(const Json& value, const std::string& where, std::int64_t min, std::int64_t max) {
  std::int64_t result = 0;
  if (value.is_number_unsigned()) {
    const std::uint64_t wide = value.get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(JsonReader::kMaxInt)) {
      return invalid_argument("{} is {}, expected at most {}", where, wide, max);
    }
    result = static_cast<std::int64_t>(wide);
  } else if (value.is_number_integer()) {
    result = value.get<std::int64_t>();
  } else if (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
             std::abs(value.get<double>()) < 9e15) {
    result = static_cast<std::int64_t>(value.get<double>());
  } else {
    return invalid_argument("{} is {}, expected an integer", where,
                            value.is_number() ? value.dump() : value.type_name());
  }
  if (result < min || result > max) {
    return invalid_argument("{} is {}, expected {} to {}", where, result, min, max);
  }
  return result;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return out_of_range("{} has {} bytes of JSON, expected at most {}", shorten(where), text.size(), limits.max_bytes);
  }
  const int depth = nesting_depth(text);
  if (depth > limits.max_depth) {
    return out_of_range("{} nests {} arrays or objects, expected at most {}", shorten(where), depth, limits.max_depth);
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return invalid_argument("{} is not valid JSON: {}", shorten(where), shorten(plain_message(error)));
  }
}

Result<Json> read_json_file(const std::string& path, const JsonLimits& limits) {
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(path, limits.max_bytes));
  return parse_json(text, path, limits);
}

Result<JsonReader> JsonReader::create(const Json& value, std::string where) {
  if (!value.is_object()) return invalid_argument("{} is {}, expected an object", where, value.type_name());
  return JsonReader(&value, std::move(where));
}

Status JsonReader::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return invalid_argument("{} is unknown; known here are {}", path(key), fmt::join(known, ", "));
  }
  return ok_status();
}

std::string JsonReader::path(std::string_view key) const {
  return fmt::format("{}{}{}", where_, where_.find(": ") == std::string::npos ? ": " : ".", shorten(key));
}

const Json* JsonReader::find(std::string_view key) const {
  const auto found = value_->find(std::string(key));
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

Result<const Json*> JsonReader::require(std::string_view key, std::string_view expected) const {
  const Json* const value = find(key);
  if (value == nullptr) return invalid_argument("{} is missing, expected {}", path(key), expected);
  return value;
}

Result<JsonReader> JsonReader::child(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "an object"));
  return create(*value, path(key));
}

Result<std::int64_t> JsonReader::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "an integer"));
  return to_integer(*value, path(key), min, max);
}

Result<double> JsonReader::number(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "a number"));
  if (!value->is_number()) return invalid_argument("{} is {}, expected a number", path(key), value->type_name());
  return value->get<double>();
}

Result<bool> JsonReader::boolean(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "true or false"));
  if (!value->is_boolean()) return invalid_argument("{} is {}, expected true or false", path(key), value->type_name());
  return value->get<bool>();
}

Result<std::string> JsonReader::string(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "a string"));
  if (!value->is_string()) return invalid_argument("{} is {}, expected a string", path(key), value->type_name());
  return value->get<std::string>();
}

Result<std::vector<std::int64_t>> JsonReader::integers(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "an array of integers"));
  if (!value->is_array())
    return invalid_argument("{} is {}, expected an array of integers", path(key), value->type_name());
  std::vector<std::int64_t> result;
  result.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t element,
                           to_integer((*value)[i], fmt::format("{}[{}]", path(key), i), kMinInt, kMaxInt));
    result.push_back(element);
  }
  return result;
}

Result<std::vector<std::string>> JsonReader::strings(std::string_view key) const {
  FOVEA_ASSIGN_OR_RETURN(const Json* const value, require(key, "an array of strings"));
  if (!value->is_array())
    return invalid_argument("{} is {}, expected an array of strings", path(key), value->type_name());
  std::vector<std::string> result;
  result.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& element = (*value)[i];
    if (!element.is_string()) {
      return invalid_argument("{}[{}] is {}, expected a string", path(key), i, element.type_name());
    }
    result.push_back(element.get<std::string>());
  }
  return result;
}

Result<std::int64_t> JsonReader::integer_or(std::string_view key, std::int64_t fallback, std::int64_t min,
                                            std::int64_t max) const {
  if (!has(key)) return fallback;
  return integer(key, min, max);
}

Result<double> JsonReader::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> JsonReader::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  return boolean(key);
}

Result<std::string> JsonReader::string_or(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  return string(key);
}

}  // namespace fovea
