// `\s` and `\S` of regular expressions, written out. xgrammar compiles those of a JSON schema and those that become an
// automaton elsewhere than others, and of spaces beyond ASCII neither knows what ECMA 262 lists, which JSON schema and
// clients go by. Called by the compiler before xgrammar sees a pattern.
#pragma once

#include <string>
#include <string_view>

namespace fovea {

// The same with classes in place of `\s` and `\S`: ECMA 262's WhiteSpace and LineTerminator, and what is neither.
std::string with_written_spaces(std::string_view regex);

}  // namespace fovea
