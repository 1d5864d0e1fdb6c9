// Expressions of interpreter.h: evaluation, operators, subscripts.
#include <algorithm>
#include <cmath>

#include "engine/template/interpreter.h"
#include "engine/template/text.h"
#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

struct DepthGuard {
  DepthGuard(int& depth, int limit) : depth(depth) {
    if (++depth > limit) {
      --depth;
      fail("the template recurses deeper than " + std::to_string(limit) + " levels");
    }
  }
  ~DepthGuard() { --depth; }
  int& depth;
};

[[noreturn]] void undefined_error(const Value& value) {
  fail(value.size == 0 ? "an undefined value is used" : "'" + std::string(value.text()) + "' is undefined");
}

[[noreturn]] void overflow() { fail("an integer does not fit 64 bits"); }

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

// Index of a Python slice bound: negative counts from the end, then clamped.
std::int64_t bound(const Value& value, std::int64_t size, std::int64_t fallback, std::int64_t low, std::int64_t high) {
  if (value.is_none()) return fallback;
  if (!value.is_integral()) fail("slice bounds must be integers, got " + std::string(type_name(value)));
  std::int64_t index = value.as_int();
  if (index < 0) index = index < -size ? low : index + size;
  return std::clamp(index, low, high);
}

}  // namespace

Value Interpreter::evaluate(const Node& node) {
  step();
  DepthGuard guard(depth_, limits_.recursion);
  try {
    return evaluate_inner(node);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = node.line;
    throw;
  }
}

Value Interpreter::evaluate_inner(const Node& node) {
  const auto child = [&](std::size_t i) { return evaluate(*node.children[i]); };
  switch (node.kind) {
    case NodeKind::kNone: return Value::none();
    case NodeKind::kBool: return Value::of(node.integer != 0);
    case NodeKind::kInteger: return Value::of(node.integer);
    case NodeKind::kFloat: return Value::of(node.number);
    case NodeKind::kString: return Value::string(node.text);
    case NodeKind::kName: return lookup(node.text);
    case NodeKind::kList:
    case NodeKind::kTuple: {
      std::vector<Value> values;
      values.reserve(node.children.size());
      for (std::size_t i = 0; i < node.children.size(); ++i) values.push_back(child(i));
      return list(std::move(values), node.kind == NodeKind::kTuple);
    }
    case NodeKind::kDict: {
      Dict* made = arena_.dict();
      for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
        const Value key = child(i);
        if (key.type == Type::kList || key.type == Type::kDict) {
          fail("a " + std::string(type_name(key)) + " cannot be a key of a dict");
        }
        arena_.charge(sizeof(made->items[0]));
        if (!key.is_string()) step(made->items.size());
        made->set(key, child(i + 1));
      }
      return Value::of(made);
    }
    case NodeKind::kAttribute: return attribute(child(0), node.text);
    case NodeKind::kItem: {
      const Value object = child(0);
      return item(object, child(1));
    }
    case NodeKind::kSlice: return slice(node);
    case NodeKind::kCall: {
      const Value callee = child(0);
      Arguments arguments;
      fill_arguments(node, arguments);
      return call(callee, arguments);
    }
    case NodeKind::kFilter: return apply_filter(node, nullptr);
    case NodeKind::kTest: {
      const Test test = find_test(node.text);
      if (test == nullptr) fail("there is no test '" + node.text + "'");
      const Value input = child(0);
      Arguments arguments;
      fill_arguments(node, arguments);
      return Value::of(test(*this, input, arguments));
    }
    case NodeKind::kNot: return Value::of(!truthy(child(0)));
    case NodeKind::kNegative: {
      const Value value = child(0);
      if (value.is_undefined()) undefined_error(value);
      if (value.type == Type::kFloat) return Value::of(-value.number);
      if (!value.is_integral()) fail("'-' needs a number, got " + std::string(type_name(value)));
      if (value.as_int() == INT64_MIN) overflow();
      return Value::of(-value.as_int());
    }
    case NodeKind::kPositive: {
      const Value value = child(0);
      if (value.is_undefined()) undefined_error(value);
      if (!value.is_number()) fail("'+' needs a number, got " + std::string(type_name(value)));
      return value.type == Type::kFloat ? value : Value::of(value.as_int());
    }
    case NodeKind::kBinary: {
      const Value left = child(0);
      return binary(node.text, left, child(1));
    }
    case NodeKind::kCompare: return Value::of(compare_chain(node));
    case NodeKind::kAnd: {
      const Value left = child(0);
      return truthy(left) ? child(1) : left;
    }
    case NodeKind::kOr: {
      const Value left = child(0);
      return truthy(left) ? left : child(1);
    }
    case NodeKind::kConcat: {
      std::string joined;
      for (std::size_t i = 0; i < node.children.size(); ++i) joined.append(text(child(i)));
      return string(std::move(joined));
    }
    case NodeKind::kCondition:
      if (truthy(child(1))) return child(0);
      return node.children[2] ? child(2) : Value::undefined();
    default: fail("an expression was expected");
  }
}

void Interpreter::fill_arguments(const Node& node, Arguments& arguments) {
  const std::size_t named_from = node.children.size() - node.names.size();
  for (std::size_t i = 1; i < node.children.size(); ++i) {
    const Value value = evaluate(*node.children[i]);
    if (i < named_from) {
      arguments.values.push_back(value);
    } else {
      arguments.named.emplace_back(node.names[i - named_from], value);
    }
  }
}

Value Interpreter::apply_filter(const Node& node, const Value* block_input) {
  const Filter filter = find_filter(node.text);
  if (filter == nullptr) throw TemplateError(node.line, "there is no filter '" + node.text + "'");
  Value input;
  if (!node.children[0]) {
    input = *block_input;
  } else if (block_input != nullptr && node.children[0]->kind == NodeKind::kFilter) {
    input = apply_filter(*node.children[0], block_input);
  } else {
    input = evaluate(*node.children[0]);
  }
  Arguments arguments;
  fill_arguments(node, arguments);
  return filter(*this, input, arguments);
}

bool Interpreter::compare_chain(const Node& node) {
  Value left = evaluate(*node.children[0]);
  for (std::size_t i = 0; i < node.names.size(); ++i) {
    const Value right = evaluate(*node.children[i + 1]);
    const std::string& op = node.names[i];
    bool holds;
    if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      if (left.is_string() && right.is_string()) step(std::min(left.size, right.size) / 64);
      if (left.is_sequence() && right.is_sequence()) step(left.list->items.size());
      if (op == "==" || op == "!=") {
        holds = equal(left, right) == (op == "==");
      } else {
        if (left.is_undefined()) undefined_error(left);
        if (right.is_undefined()) undefined_error(right);
        if (left.is_number() && right.is_number() && (std::isnan(left.as_double()) || std::isnan(right.as_double()))) {
          holds = false;
        } else {
          const int order = compare(left, right);
          holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
        }
      }
    }
    if (!holds) return false;
    left = right;
  }
  return true;
}

bool Interpreter::contains(const Value& sequence, const Value& value) {
  switch (sequence.type) {
    case Type::kUndefined: return false;
    case Type::kString:
      if (!value.is_string()) fail("'in <str>' needs a str, got " + std::string(type_name(value)));
      step(sequence.size / 64);
      return find(sequence.text(), value.text()) != std::string_view::npos;
    case Type::kDict:
      step(value.is_string() ? 1 : sequence.dict->items.size());
      return sequence.dict->find(value) != nullptr;
    case Type::kList:
    case Type::kTuple:
      step(sequence.list->items.size());
      return std::any_of(sequence.list->items.begin(), sequence.list->items.end(),
                         [&](const Value& item) { return equal(item, value); });
    default: fail("'in' cannot search a value of type " + std::string(type_name(sequence)));
  }
}

std::vector<Value> Interpreter::items(const Value& value) {
  std::vector<Value> values;
  switch (value.type) {
    case Type::kUndefined: break;
    case Type::kList:
    case Type::kTuple: values = value.list->items; break;
    case Type::kDict:
      for (const auto& [key, entry] : value.dict->items) values.push_back(key);
      break;
    case Type::kString:
      arena_.charge(value.size * sizeof(Value));
      for (std::size_t at = 0; at < value.size;) {
        const std::size_t length = unicode::lead_length(value.text()[at]);
        values.push_back(Value::string(value.text().substr(at, length)));
        at += length;
      }
      break;
    default: fail("a value of type " + std::string(type_name(value)) + " is not iterable");
  }
  step(values.size());
  return values;
}

std::size_t Interpreter::length(const Value& value) {
  switch (value.type) {
    case Type::kUndefined: return 0;
    case Type::kString: step(value.size / 64); return code_points(value.text());
    case Type::kList:
    case Type::kTuple: return value.list->items.size();
    case Type::kDict: return value.dict->items.size();
    case Type::kLoop: return value.loop->items->size();
    default: fail("a value of type " + std::string(type_name(value)) + " has no length");
  }
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  switch (object.type) {
    case Type::kUndefined: undefined_error(object);
    case Type::kNamespace: {
      const Value* found = object.space->attributes->find(name);
      return found != nullptr ? *found : Value::undefined(name);
    }
    case Type::kLoop: {
      const LoopState& loop = *object.loop;
      const auto size = static_cast<std::int64_t>(loop.items->size()), index = static_cast<std::int64_t>(loop.index);
      if (name == "index") return Value::of(index + 1);
      if (name == "index0") return Value::of(index);
      if (name == "revindex") return Value::of(size - index);
      if (name == "revindex0") return Value::of(size - index - 1);
      if (name == "first") return Value::of(index == 0);
      if (name == "last") return Value::of(index + 1 == size);
      if (name == "length") return Value::of(size);
      if (name == "depth") return Value::of(static_cast<std::int64_t>(loop.depth));
      if (name == "depth0") return Value::of(static_cast<std::int64_t>(loop.depth) - 1);
      if (name == "previtem")
        return index > 0 ? (*loop.items)[loop.index - 1] : Value::undefined("there is no previous item");
      if (name == "nextitem")
        return index + 1 < size ? (*loop.items)[loop.index + 1] : Value::undefined("there is no next item");
      break;
    }
    default: break;
  }
  if (has_method(object, name)) {
    Value made = Value::typed(Type::kMethod);
    made.method = arena_.method();
    made.method->self = object;
    made.method->name = name;
    return made;
  }
  if (object.type == Type::kMacro && name == "name") return Value::string(object.macro->node->text);
  if (object.type == Type::kDict) {
    const Value* found = object.dict->find(name);
    if (found != nullptr) return *found;
  }
  return Value::undefined(name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) undefined_error(object);
  if (object.type == Type::kDict) {
    if (!key.is_string()) step(object.dict->items.size());
    const Value* found = object.dict->find(key);
    if (found != nullptr) return *found;
    if (key.is_string() && has_method(object, key.text())) return attribute(object, key.text());
    return key.is_string() ? Value::undefined(key.text()) : Value::undefined("item");
  }
  if ((object.is_sequence() || object.is_string()) && key.is_integral()) {
    const auto size = static_cast<std::int64_t>(length(object));
    const std::int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (index < 0 || index >= size) return Value::undefined("item");
    if (object.is_sequence()) return object.list->items[static_cast<std::size_t>(index)];
    const std::size_t at = offset_of(object.text(), static_cast<std::size_t>(index));
    return Value::string(object.text().substr(at, unicode::lead_length(object.text()[at])));
  }
  if (key.is_string()) return attribute(object, key.text());
  return Value::undefined("item");
}

Value Interpreter::path(const Value& object, const Value& dotted) {
  if (dotted.is_integral()) return item(object, dotted);
  if (!dotted.is_string()) fail("an attribute must be a name or a number, got " + std::string(type_name(dotted)));
  Value at = object;
  for (const std::string_view part : split(dotted.text(), ".", -1)) {
    const bool digits =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    at = digits ? item(at, Value::of(std::int64_t{std::stoi(std::string(part))})) : item(at, Value::string(part));
  }
  return at;
}

Value Interpreter::slice(const Node& node) {
  const Value object = evaluate(*node.children[0]);
  const auto part = [&](std::size_t i) { return node.children[i] ? evaluate(*node.children[i]) : Value::none(); };
  const Value start = part(1), stop = part(2), step_value = part(3);
  if (object.is_undefined()) undefined_error(object);
  if (!object.is_string() && !object.is_sequence()) {
    fail("a value of type " + std::string(type_name(object)) + " cannot be sliced");
  }
  const std::int64_t stride = step_value.is_none() ? 1 : step_value.is_integral() ? step_value.as_int() : 0;
  if (stride == 0) fail("the step of a slice must be an integer other than 0");
  const auto size = static_cast<std::int64_t>(length(object));
  const bool forward = stride > 0;
  const std::int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
  const std::int64_t from = bound(start, size, forward ? low : high, low, high);
  const std::int64_t to = bound(stop, size, forward ? high : low, low, high);
  if (object.is_string() && stride == 1) {
    if (from >= to) return Value::string("");
    step(object.size / 64);
    const std::size_t begin = offset_of(object.text(), static_cast<std::size_t>(from));
    const std::string_view rest = object.text().substr(begin);
    return Value::string(rest.substr(0, offset_of(rest, static_cast<std::size_t>(to - from))));
  }
  const std::vector<Value> all = items(object);
  std::vector<Value> chosen;
  const std::int64_t count = forward ? (to - from + stride - 1) / stride : (from - to - stride - 1) / -stride;
  std::int64_t index = from;
  for (std::int64_t i = 0; i < count; ++i, index += stride) chosen.push_back(all[static_cast<std::size_t>(index)]);
  if (!object.is_string()) return list(std::move(chosen), object.type == Type::kTuple);
  std::string joined;
  for (const Value& character : chosen) joined.append(character.text());
  return string(std::move(joined));
}

Value Interpreter::repeat(const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const std::size_t unit = value.is_string() ? value.size : value.list->items.size() * sizeof(Value);
  if (unit != 0 && count > limits_.memory_bytes / unit) fail("a repeated value is too large");
  arena_.charge(unit * count);
  step(unit * count / 64);
  if (value.is_string()) {
    std::string made;
    if (unit != 0) made.reserve(unit * count);
    for (std::size_t i = 0; unit != 0 && i < count; ++i) made.append(value.text());
    return string(std::move(made));
  }
  std::vector<Value> made;
  for (std::size_t i = 0; unit != 0 && i < count; ++i) {
    made.insert(made.end(), value.list->items.begin(), value.list->items.end());
  }
  return list(std::move(made), value.type == Type::kTuple);
}

Value Interpreter::binary(std::string_view op, const Value& left, const Value& right) {
  if (left.is_undefined()) undefined_error(left);
  if (op == "%" && left.is_string()) {
    Arguments arguments;
    if (right.type == Type::kTuple) {
      arguments.values = right.list->items;
    } else {
      arguments.values.push_back(right);
    }
    return string(format_percent(*this, left.text(), arguments));
  }
  if (right.is_undefined()) undefined_error(right);
  if (op == "+" && left.is_string() && right.is_string()) {
    std::string joined;
    joined.reserve(left.size + right.size);
    joined.append(left.text()).append(right.text());
    step(joined.size() / 64);
    return string(std::move(joined));
  }
  if (op == "+" && left.is_sequence() && left.type == right.type) {
    std::vector<Value> joined = left.list->items;
    joined.insert(joined.end(), right.list->items.begin(), right.list->items.end());
    step(joined.size());
    return list(std::move(joined), left.type == Type::kTuple);
  }
  if (op == "*" && right.is_integral() && (left.is_string() || left.is_sequence())) return repeat(left, right.as_int());
  if (op == "*" && left.is_integral() && (right.is_string() || right.is_sequence()))
    return repeat(right, left.as_int());
  if (!left.is_number() || !right.is_number()) {
    fail("operator '" + std::string(op) + "' does not work on " + std::string(type_name(left)) + " and " +
         std::string(type_name(right)));
  }
  return arithmetic(op == "//" ? 'q' : op == "**" ? 'p' : op[0], left, right);
}

Value Interpreter::arithmetic(char op, const Value& left, const Value& right) {
  if (op == '/' || op == 'q' || op == '%') {
    if (right.as_double() == 0) fail("division by zero");
  }
  if (left.is_integral() && right.is_integral() && op != '/' && !(op == 'p' && right.as_int() < 0)) {
    const std::int64_t a = left.as_int(), b = right.as_int();
    std::int64_t result = 0;
    switch (op) {
      case '+':
        if (__builtin_add_overflow(a, b, &result)) overflow();
        return Value::of(result);
      case '-':
        if (__builtin_sub_overflow(a, b, &result)) overflow();
        return Value::of(result);
      case '*':
        if (__builtin_mul_overflow(a, b, &result)) overflow();
        return Value::of(result);
      case 'p': return Value::of(power(a, b));
      default: {
        if (a == INT64_MIN && b == -1) {
          if (op == '%') return Value::of(std::int64_t{0});
          overflow();
        }
        // Python rounds towards minus infinity.
        const std::int64_t quotient = a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
        return Value::of(op == 'q' ? quotient : a - quotient * b);
      }
    }
  }
  const double a = left.as_double(), b = right.as_double();
  switch (op) {
    case '+': return Value::of(a + b);
    case '-': return Value::of(a - b);
    case '*': return Value::of(a * b);
    case '/': return Value::of(a / b);
    case 'p': {
      if (a == 0 && b < 0) fail("0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("the power of a negative number is not real");
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) fail("a power is too large");
      return Value::of(result);
    }
    default: {
      double remainder = std::fmod(a, b);
      if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
      if (op == '%') return Value::of(remainder == 0 ? std::copysign(0.0, b) : remainder);
      const double quotient = (a - remainder) / b;
      if (quotient == 0) return Value::of(std::copysign(0.0, a / b));
      const double floored = std::floor(quotient);
      return Value::of(quotient - floored > 0.5 ? floored + 1 : floored);
    }
  }
}

}  // namespace fovea::jinja
