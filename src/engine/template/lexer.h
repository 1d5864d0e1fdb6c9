// Cuts a template's source into tokens and applies the white-space rules of chat templates (trim_blocks and
// lstrip_blocks on, one trailing newline dropped), as Jinja2's lexer does. Called by the parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // name, operator, data, or the value of a string literal
  std::int64_t integer = 0;
  double number = 0;
  int line = 1;
};

// Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace fovea::jinja
