// Fields of a request that no parser has read: accepted where they cannot change the answer, else refused by name.
// Called by the parsers of request bodies after they have read what they know.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field_reader.h"

namespace fovea::server {

// Refuses (or, where the reader is lenient, notes) each. prefix: stands before the names in errors, "stream_options.".
void refuse_other_fields(FieldReader& fields, const std::string& prefix = "");

// The same of the members of a field that is an object.
void refuse_other_members(FieldReader& fields, const std::string& name, const Json& object,
                          std::initializer_list<std::string_view> known);

}  // namespace fovea::server
