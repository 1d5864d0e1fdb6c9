// Counted repetitions in regular expressions and in EBNF: {1000} inside of {1000} is a million states. Called by the
// compiler before it compiles, and by the check of JSON schemas for their patterns.
//
// With a large vocabulary even {20} costs: each of its states has a mask of its own, found when it is compiled (tens of
// milliseconds) or, beyond some number, whenever a token is sampled there (as much again). So counts that cost are
// dropped from what masks are made of where that is safe, and checked on what was sampled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fovea/status.h"

namespace fovea {

// kInvalidArgument when the text, with its counted repetitions written out, holds too many characters. `quoted`: text
// between double quotes is literal, as in EBNF.
Status check_repetitions(std::string_view text, bool quoted);

// The same without the counts that cost: a* for a{2,500}. It matches all that the text does, and more.
std::string without_costly_counts(std::string_view text, bool quoted);

// Whether a group is repeated in the regular expression: then there may be many ways to read a text.
bool repeats_groups(std::string_view regex);

}  // namespace fovea
