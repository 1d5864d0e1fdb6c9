// What of JSON Schema a grammar can keep to. xgrammar ignores several keywords; here they are refused by name, so that
// whatever is accepted holds. Called by the compiler before it compiles.
#pragma once

#include <string_view>

#include "base/json.h"

namespace fovea {

// kInvalidArgument names the keyword and where it stands ("properties.name: ...").
Status check_json_schema(std::string_view text);

}  // namespace fovea
