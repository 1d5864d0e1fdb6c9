// What base/json.h does not know of tokenizer.json: fields of several types, and pipelines of parts. Called by every
// from_json of this folder.
#pragma once

#include <string_view>

#include "base/json.h"

namespace fovea::json_util {

// The field, or null if the value is no object or has no such field.
const Json& field(const Json& object, const char* name);

// A part of a pipeline, which is an object with a "type"; its messages begin with `what` and that type.
Result<JsonReader> typed_part(const Json& spec, std::string_view what);

// The parts of a Sequence, an array; a Status where they are none, or where sequences nest more than 8 deep.
Result<const Json*> sequence_parts(const JsonReader& sequence, const char* name, int depth);

}  // namespace fovea::json_util
