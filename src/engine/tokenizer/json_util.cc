// Implementation of json_util.h.
#include "engine/tokenizer/json_util.h"

#include "base/quote.h"
#include "base/status.h"

namespace fovea::json_util {

const Json& field(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

Result<JsonReader> typed_part(const Json& spec, std::string_view what) {
  FOVEA_ASSIGN_OR_RETURN(const JsonReader untyped, JsonReader::create(spec, std::string(what)));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, untyped.string("type"));
  return JsonReader::create(spec, fmt::format("{} {}", what, shorten(type)));
}

Result<const Json*> sequence_parts(const JsonReader& sequence, const char* name, int depth) {
  constexpr int kMaxDepth = 8;
  const Json* const parts = sequence.find(name);
  if (parts == nullptr || !parts->is_array()) return invalid_argument("{} must be an array", sequence.path(name));
  if (depth > kMaxDepth) return invalid_argument("{}: nests deeper than {}", sequence.where(), kMaxDepth);
  return parts;
}

}  // namespace fovea::json_util
