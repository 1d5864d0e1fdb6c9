// Reading untrusted JSON with bounds, and field access whose errors name the field. Called by the tokenizer's loader;
// usable for any model file in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fovea::json_util {

struct Limits {
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t max_depth = 64;
};

// Parses a JSON document; `what` names it in messages ("tokenizer.json").
Result<nlohmann::json> parse(std::string_view text, std::string_view what, const Limits& limits = {});

// The file's bytes; NotFound if it is not there, DataLoss if it cannot be read, OutOfRange if it is larger than the
// limit.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes = Limits{}.max_bytes);

// The field, or null if the value is no object or has no such field.
const nlohmann::json& field(const nlohmann::json& object, const char* name);

// A field of the given type; `fallback` where it is absent or null; a Status where it has another type.
Result<bool> bool_field(const nlohmann::json& object, const char* name, bool fallback, std::string_view where);
Result<std::string> string_field(const nlohmann::json& object, const char* name, std::string_view fallback,
                                 std::string_view where);
// A required string.
Result<std::string> required_string(const nlohmann::json& object, const char* name, std::string_view where);

}  // namespace fovea::json_util
