// The syntax tree of a template. Built by the parser, walked by the interpreter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fovea::jinja {

enum class NodeKind : std::uint8_t {
  // Expressions.
  kNone,
  kBool,       // integer
  kInteger,    // integer
  kFloat,      // number
  kString,     // text
  kName,       // text
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value ...
  kAttribute,  // children: object; text: name
  kItem,       // children: object, key
  kSlice,      // children: object, start, stop, step (null where absent)
  kCall,       // children: callee, arguments; names: keywords of the last arguments
  kFilter,     // text: name; children: input (null in a filter block), arguments; names as kCall
  kTest,       // text: name; children: input, arguments; names as kCall
  kNot,
  kNegative,
  kPositive,
  kBinary,   // text: operator; children: left, right
  kCompare,  // children: operands; names: operators between them
  kAnd,
  kOr,
  kConcat,     // children: all operands of a row of ~
  kCondition,  // children: value, condition, other value (null where absent)
  // Statements.
  kBody,         // children: statements
  kData,         // text
  kOutput,       // children: expression
  kIf,           // children: condition, body, condition, body ..., else body (if the count is odd)
  kFor,          // children: target, sequence, condition (or null), body, else body (or null)
  kSet,          // children: target, value
  kSetBlock,     // children: target, filters (a chain whose innermost input is null; or null), body
  kMacro,        // text: name; names: parameters; children: defaults of the last parameters, body
  kCallBlock,    // children: call, macro of the body
  kWith,         // children: target, value, target, value ..., body
  kFilterBlock,  // children: filters, body
  kScope,        // children: body (a generation block: printed as it is)
  kBreak,
  kContinue
};

struct Node {
  NodeKind kind = NodeKind::kNone;
  std::int32_t line = 0;
  std::int32_t depth = 1;     // of the tree below, bounded by the parser
  bool uses_varargs = false;  // kMacro: the body names varargs, kwargs
  bool uses_kwargs = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Node>> children;
};

using NodePtr = std::unique_ptr<Node>;

}  // namespace fovea::jinja
