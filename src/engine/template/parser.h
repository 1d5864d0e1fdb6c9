// Builds the syntax tree of a template. Called by ChatTemplate::parse.
#pragma once

#include <string_view>

#include "engine/template/ast.h"

namespace fovea::jinja {

inline constexpr int kMaxTreeDepth = 160;
inline constexpr std::size_t kMaxNodes = 200'000;

// Throws TemplateError, which names the line and what was expected.
NodePtr parse_template(std::string_view source);

}  // namespace fovea::jinja
