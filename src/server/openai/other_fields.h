// Fields of a request that no parser has read: accepted where they cannot change the answer, else refused by name.
// Called by api_request.cc after it has read what it knows.
#pragma once

#include <string>
#include <vector>

#include "server/openai/field_reader.h"

namespace fovea::server {

// Refuses (or, where the reader is lenient, notes) each. prefix: stands before the names in errors, "stream_options.".
void refuse_other_fields(FieldReader& fields, const std::string& prefix = "");

}  // namespace fovea::server
