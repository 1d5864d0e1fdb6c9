// Access to the optional fields of tokenizer.json, with errors that name the field. Called by every from_json of this
// folder; parsing itself is base/json.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fovea::json_util {

// The field, or null if the value is no object or has no such field.
const nlohmann::json& field(const nlohmann::json& object, const char* name);

// A field of the given type; `fallback` where it is absent or null; a Status where it has another type.
Result<bool> bool_field(const nlohmann::json& object, const char* name, bool fallback, std::string_view where);
Result<std::string> string_field(const nlohmann::json& object, const char* name, std::string_view fallback,
                                 std::string_view where);
// A required string.
Result<std::string> required_string(const nlohmann::json& object, const char* name, std::string_view where);
// The parts of a Sequence, an array; a Status where they are none, or where sequences nest more than 8 deep.
Result<const nlohmann::json*> sequence_parts(const nlohmann::json& spec, const char* name, int depth,
                                             std::string_view where);

}  // namespace fovea::json_util
