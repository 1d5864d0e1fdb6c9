// Walks a template's tree and writes its output. One Interpreter is one rendering; every step, byte of output, byte of
// memory and level of recursion is counted, so that a hostile template ends with an error. Filters, tests and methods
// are in files of their own (filters.cc, tests.cc, methods.cc) and call back through this class.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/template/ast.h"
#include "engine/template/value.h"

namespace fovea::jinja {

struct Limits {
  std::uint64_t steps = 20'000'000;
  std::size_t output_bytes = std::size_t{64} << 20;
  std::size_t memory_bytes = std::size_t{256} << 20;  // beyond what the context itself needs
  int recursion = 400;
};

class Interpreter;

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string_view, Value>> named;

  // The argument of that position or name; null if it was not given.
  const Value* find(std::size_t position, std::string_view name) const;
  // Fails when more arguments came than `most` positions, or a name that is not in `names`.
  void check(std::string_view what, std::size_t most, std::initializer_list<std::string_view> names) const;
};

struct Builtin {
  std::string_view name;
  Value (*call)(Interpreter&, const Arguments&);
};

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);
// Null if there is none of that name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
// True if a value of this type has such a method.
bool has_method(const Value& self, std::string_view name);
Value call_method(Interpreter& interpreter, const BoundMethod& method, const Arguments& arguments);
// The operator % of strings and the filter format; str.format.
std::string format_percent(Interpreter& interpreter, std::string_view format, const Arguments& arguments);
std::string format_braces(Interpreter& interpreter, std::string_view format, const Arguments& arguments);

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
};

struct Macro {
  const Node* node = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

class Interpreter {
 public:
  Interpreter(const nlohmann::ordered_json& context, const Limits& limits);

  std::string run(const Node& root);

  // For filters, tests and methods.
  Arena& arena() { return arena_; }
  const Limits& limits() const { return limits_; }
  void step(std::size_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) fail("the template takes more than " + std::to_string(limits_.steps) + " steps");
  }
  std::string text(const Value& value);  // str(value), counted
  Value string(std::string text) { return arena_.string(std::move(text)); }
  Value list(std::vector<Value> items, bool tuple = false);
  std::vector<Value> items(const Value& value);  // what iterating over it gives
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  // A dotted path ("function.name", "0.id") as filters take it.
  Value path(const Value& object, const Value& dotted);
  bool contains(const Value& sequence, const Value& value);
  std::size_t length(const Value& value);
  Value call(const Value& callee, const Arguments& arguments);
  Value binary(std::string_view op, const Value& left, const Value& right);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  struct Deeper;
  class Inside;

  Value convert(const nlohmann::ordered_json& json, int depth);
  Value lookup(std::string_view name);
  void assign(Scope& scope, std::string_view name, const Value& value);
  void assign_target(const Node& target, const Value& value);
  void write(std::string_view text);

  Flow execute(const Node& node);
  Flow execute_children(const Node& node);
  Flow execute_for(const Node& node);
  void execute_with(const Node& node);
  // The output of a body in a scope of its own.
  Value capture(const Node& body);

  Value evaluate(const Node& node);
  Value evaluate_inner(const Node& node);
  bool compare_chain(const Node& node);
  Value slice(const Node& node);
  Value apply_filter(const Node& node, const Value* block_input);
  void fill_arguments(const Node& node, Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value arithmetic(char op, const Value& left, const Value& right);
  Value repeat(const Value& value, std::int64_t times);

  Limits limits_;
  Arena arena_;
  std::uint64_t steps_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  std::deque<Scope> scopes_;
  std::deque<Macro> macros_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
};

}  // namespace fovea::jinja
