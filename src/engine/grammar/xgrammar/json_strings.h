// Strings of JSON schemas as xgrammar 0.2.8 has to be asked for them: its own bounded strings take raw control
// characters, and so do patterns that are too much for its automata, besides quotes. Called by the compiler of
// grammars.
#pragma once

#include <nlohmann/json.hpp>

#include "fovea/status.h"

namespace fovea {

// `\s` and `\S` of patterns (regex_space.h), here and below.
void write_spaces_of_patterns(nlohmann::ordered_json* schema);

// minLength and maxLength become patterns, here and below.
void write_bounds_as_patterns(nlohmann::ordered_json* schema);

// Drops, here and below, lengths of strings and counts of patterns that cost (repetition.h); true when there were any.
// Called before lengths are patterns. In a structural tag it looks at regular expressions and grammars, too.
bool drop_costly_counts(nlohmann::ordered_json* schema);

// Refuses patterns, here and below, that would let through what is no JSON.
Status check_patterns(const nlohmann::ordered_json& schema);

}  // namespace fovea
