// Counted repetitions in regular expressions and in EBNF: {1000} inside of {1000} is a million states. Called by the
// compiler before it compiles, and by the check of JSON schemas for their patterns.
#pragma once

#include <string_view>

#include "fovea/status.h"

namespace fovea {

// kInvalidArgument when the text, with its counted repetitions written out, holds too many characters. `quoted`: text
// between double quotes is literal, as in EBNF.
Status check_repetitions(std::string_view text, bool quoted);

}  // namespace fovea
