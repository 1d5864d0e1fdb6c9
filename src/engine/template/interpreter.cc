// Implementation of interpreter.h: statements, scopes and calls. Expressions are in expressions.cc.
#include "engine/template/interpreter.h"

#include <algorithm>

namespace fovea::jinja {

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  for (const auto& [known, value] : named) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Arguments::check(std::string_view what, std::size_t most, std::initializer_list<std::string_view> names) const {
  if (values.size() > most) {
    fail(std::string(what) + " takes at most " + std::to_string(most) + " arguments, got " +
         std::to_string(values.size()));
  }
  for (const auto& [name, value] : named) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      fail(std::string(what) + " has no argument '" + std::string(name) + "'");
    }
  }
}

// Counts recursion while it lives.
struct Interpreter::Deeper {
  explicit Deeper(Interpreter& interpreter) : interpreter(interpreter) {
    if (++interpreter.depth_ > interpreter.limits_.recursion) {
      --interpreter.depth_;
      fail("the template recurses deeper than " + std::to_string(interpreter.limits_.recursion) + " levels");
    }
  }
  ~Deeper() { --interpreter.depth_; }
  Interpreter& interpreter;
};

// Makes a scope and enters it while it lives. A scope stays only if a macro that was defined meanwhile may refer to it.
class Interpreter::Inside {
 public:
  Inside(Interpreter& interpreter, Scope* parent)
      : interpreter_(interpreter),
        outside_(interpreter.scope_),
        scopes_(interpreter.scopes_.size()),
        macros_(interpreter.macros_.size()) {
    interpreter.scopes_.emplace_back().parent = parent;
    interpreter.scope_ = &interpreter.scopes_.back();
  }
  ~Inside() {
    interpreter_.scope_ = outside_;
    if (interpreter_.macros_.size() != macros_) return;
    while (interpreter_.scopes_.size() > scopes_) interpreter_.scopes_.pop_back();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* outside_;
  std::size_t scopes_;
  std::size_t macros_;
};

Interpreter::Interpreter(const nlohmann::ordered_json& context, const Limits& limits)
    : limits_(limits), arena_(limits.memory_bytes) {
  scope_ = &scopes_.emplace_back();
  if (context.is_null()) return;
  if (!context.is_object()) fail("the context must be an object");
  for (const auto& [name, value] : context.items()) scope_->variables.emplace_back(name, convert(value, 0));
}

Value Interpreter::convert(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) fail("the context nests deeper than " + std::to_string(kMaxValueDepth) + " levels");
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return Value::of(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer: return Value::of(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > INT64_MAX) return Value::of(json.get<double>());
      return Value::of(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_float: return Value::of(json.get<double>());
    case nlohmann::ordered_json::value_t::string: return Value::string(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      List* made = arena_.list();
      made->items.reserve(json.size());
      for (const auto& entry : json) made->items.push_back(convert(entry, depth + 1));
      return Value::of(made);
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict* made = arena_.dict();
      for (const auto& [key, entry] : json.items()) made->set(Value::string(key), convert(entry, depth + 1));
      return Value::of(made);
    }
    default: return Value::none();
  }
}

std::string Interpreter::run(const Node& root) {
  std::string output;
  out_ = &output;
  execute(root);
  return output;
}

Value Interpreter::lookup(std::string_view name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value;
    }
    step(scope->variables.size() / 8);
  }
  const Builtin* global = find_global(name);
  if (global == nullptr) return Value::undefined(name);
  Value made = Value::typed(Type::kBuiltin);
  made.builtin = global;
  return made;
}

void Interpreter::assign(Scope& scope, std::string_view name, const Value& value) {
  for (auto& [known, old] : scope.variables) {
    if (known == name) {
      old = value;
      return;
    }
  }
  step(scope.variables.size() / 8);
  scope.variables.emplace_back(name, value);
}

void Interpreter::assign_target(const Node& target, const Value& value) {
  if (target.kind == NodeKind::kName) {
    assign(*scope_, target.text, value);
  } else if (target.kind == NodeKind::kAttribute) {
    const Value space = evaluate(*target.children[0]);
    if (space.type != Type::kNamespace)
      fail("cannot assign attribute '" + target.text + "' on an object that is no namespace");
    arena_.charge(sizeof(space.space->attributes->items[0]));
    space.space->attributes->set(Value::string(target.text), value);
  } else {
    const std::vector<Value> parts = items(value);
    if (parts.size() != target.children.size()) {
      fail("cannot unpack " + std::to_string(parts.size()) + " values into " + std::to_string(target.children.size()) +
           " names");
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign_target(*target.children[i], parts[i]);
  }
}

void Interpreter::write(std::string_view text) {
  if (out_->size() + text.size() > limits_.output_bytes) {
    fail("the template prints more than " + std::to_string(limits_.output_bytes >> 20) + " MiB");
  }
  out_->append(text);
}

std::string Interpreter::text(const Value& value) {
  std::string made = to_text(value, limits_.output_bytes);
  step(made.size() / 32);
  return made;
}

Value Interpreter::list(std::vector<Value> items, bool tuple) {
  arena_.charge(items.size() * sizeof(Value));
  List* made = arena_.list();
  made->items = std::move(items);
  return Value::of(made, tuple);
}

Interpreter::Flow Interpreter::execute_children(const Node& node) {
  for (const NodePtr& child : node.children) {
    const Flow flow = execute(*child);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Node& node) {
  step();
  Deeper deeper(*this);
  try {
    switch (node.kind) {
      case NodeKind::kBody: return execute_children(node);
      case NodeKind::kData: write(node.text); return Flow::kNormal;
      case NodeKind::kOutput: {
        const Value value = evaluate(*node.children[0]);
        if (value.is_string()) {
          write(value.text());
        } else {
          write(text(value));
        }
        return Flow::kNormal;
      }
      case NodeKind::kIf: {
        std::size_t i = 0;
        for (; i + 1 < node.children.size(); i += 2) {
          if (truthy(evaluate(*node.children[i]))) return execute(*node.children[i + 1]);
        }
        return i < node.children.size() ? execute(*node.children[i]) : Flow::kNormal;
      }
      case NodeKind::kFor: return execute_for(node);
      case NodeKind::kSet: assign_target(*node.children[0], evaluate(*node.children[1])); return Flow::kNormal;
      case NodeKind::kSetBlock: {
        Value value = capture(*node.children[2]);
        if (node.children[1]) value = apply_filter(*node.children[1], &value);
        assign_target(*node.children[0], value);
        return Flow::kNormal;
      }
      case NodeKind::kFilterBlock: {
        const Value value = capture(*node.children[1]);
        write(text(apply_filter(*node.children[0], &value)));
        return Flow::kNormal;
      }
      case NodeKind::kScope: write(capture(*node.children[0]).text()); return Flow::kNormal;
      case NodeKind::kMacro: {
        arena_.charge(sizeof(Macro));
        Value macro = Value::typed(Type::kMacro);
        macro.macro = &macros_.emplace_back(Macro{&node, scope_});
        assign(*scope_, node.text, macro);
        return Flow::kNormal;
      }
      case NodeKind::kCallBlock: {
        arena_.charge(sizeof(Macro));
        Value caller = Value::typed(Type::kMacro);
        caller.macro = &macros_.emplace_back(Macro{node.children[1].get(), scope_});
        const Node& called = *node.children[0];
        Arguments arguments;
        fill_arguments(called, arguments);
        arguments.named.emplace_back("caller", caller);
        write(text(call(evaluate(*called.children[0]), arguments)));
        return Flow::kNormal;
      }
      case NodeKind::kWith: execute_with(node); return Flow::kNormal;
      case NodeKind::kBreak: return Flow::kBreak;
      case NodeKind::kContinue: return Flow::kContinue;
      default: fail("a statement was expected");
    }
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = node.line;
    throw;
  }
}

Interpreter::Flow Interpreter::execute_for(const Node& node) {
  const Node& target = *node.children[0];
  // `loop` may be kept in a namespace, so the items must outlive the loop.
  Value sequence = evaluate(*node.children[1]);
  if (!sequence.is_sequence()) sequence = list(items(sequence));
  Scope* const outside = scope_;
  if (node.children[2]) {
    std::vector<Value> kept;
    for (const Value& value : items(sequence)) {
      const Inside inside(*this, outside);
      assign_target(target, value);
      if (truthy(evaluate(*node.children[2]))) kept.push_back(value);
    }
    sequence = list(std::move(kept));
  }
  LoopState* state = arena_.loop();
  state->items = &sequence.list->items;
  state->depth = static_cast<std::size_t>(++loop_depth_);
  Value loop = Value::typed(Type::kLoop);
  loop.loop = state;
  bool completed = false;  // as in Jinja2, else runs unless some round reached its end
  for (std::size_t i = 0; i < state->items->size(); ++i) {
    step();
    state->index = i;
    const Inside inside(*this, outside);
    assign(*scope_, "loop", loop);
    assign_target(target, (*state->items)[i]);
    const Flow flow = execute(*node.children[3]);
    if (flow == Flow::kNormal) completed = true;
    if (flow == Flow::kBreak) break;
  }
  --loop_depth_;
  if (completed || !node.children[4]) return Flow::kNormal;
  const Inside inside(*this, outside);
  return execute(*node.children[4]);
}

void Interpreter::execute_with(const Node& node) {
  std::vector<Value> values;  // they do not see each other
  for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) values.push_back(evaluate(*node.children[i + 1]));
  const Inside inside(*this, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) assign_target(*node.children[2 * i], values[i]);
  execute(*node.children.back());
}

Value Interpreter::capture(const Node& body) {
  std::string captured;
  std::string* const outer = std::exchange(out_, &captured);
  {
    const Inside inside(*this, scope_);
    execute(body);  // an error ends the rendering, so the output needs no putting back then
  }
  out_ = outer;
  return string(std::move(captured));
}

Value Interpreter::call_macro(const Macro& macro, const Arguments& arguments) {
  Deeper deeper(*this);
  const Node& node = *macro.node;
  const std::size_t parameters = node.names.size();
  const std::size_t first_default = parameters - (node.children.size() - 1);
  const Inside inside(*this, macro.scope);
  std::vector<bool> given(parameters, false);
  for (std::size_t i = 0; i < parameters && i < arguments.values.size(); ++i) {
    assign(*scope_, node.names[i], arguments.values[i]);
    given[i] = true;
  }
  Dict* rest = nullptr;
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(node.names.begin(), node.names.end(), name);
    if (place != node.names.end()) {
      const auto index = static_cast<std::size_t>(place - node.names.begin());
      if (given[index]) fail("macro '" + node.text + "' got argument '" + std::string(name) + "' twice");
      assign(*scope_, name, value);
      given[index] = true;
    } else if (name == "caller") {
      assign(*scope_, name, value);
    } else if (node.uses_kwargs) {
      if (rest == nullptr) rest = arena_.dict();
      rest->set(Value::string(name), value);
    } else {
      fail("macro '" + node.text + "' has no parameter '" + std::string(name) + "'");
    }
  }
  if (node.uses_kwargs) assign(*scope_, "kwargs", Value::of(rest != nullptr ? rest : arena_.dict()));
  if (node.uses_varargs) {
    std::vector<Value> more;
    for (std::size_t i = parameters; i < arguments.values.size(); ++i) more.push_back(arguments.values[i]);
    assign(*scope_, "varargs", list(std::move(more), true));
  } else if (arguments.values.size() > parameters) {
    fail("macro '" + node.text + "' takes " + std::to_string(parameters) + " arguments, got " +
         std::to_string(arguments.values.size()));
  }
  for (std::size_t i = 0; i < parameters; ++i) {
    if (given[i]) continue;
    const Value value =
        i >= first_default ? evaluate(*node.children[i - first_default]) : Value::undefined(node.names[i]);
    assign(*scope_, node.names[i], value);
  }
  std::string captured;
  std::string* const outer = std::exchange(out_, &captured);
  const int loops = std::exchange(loop_depth_, 0);
  execute(*node.children.back());
  loop_depth_ = loops;
  out_ = outer;
  return string(std::move(captured));
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  step();
  switch (callee.type) {
    case Type::kMacro: return call_macro(*callee.macro, arguments);
    case Type::kBuiltin: return callee.builtin->call(*this, arguments);
    case Type::kMethod: return call_method(*this, *callee.method, arguments);
    case Type::kUndefined: fail("'" + std::string(callee.text()) + "' is undefined and cannot be called");
    default: fail("a value of type " + std::string(type_name(callee)) + " cannot be called");
  }
}

}  // namespace fovea::jinja
