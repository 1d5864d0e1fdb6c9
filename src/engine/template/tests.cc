// The tests of the template language ("value is name"), with Jinja2's meaning. Looked up by the interpreter.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/template/interpreter.h"
#include "engine/template/text.h"

namespace fovea::jinja {
namespace {

const Value& operand(const Arguments& arguments) {
  if (arguments.values.empty()) fail("this test needs an argument");
  return arguments.values[0];
}

int order(const Value& input, const Arguments& arguments) {
  const Value& other = operand(arguments);
  if (input.is_undefined() || other.is_undefined()) fail("an undefined value cannot be ordered");
  return compare(input, other);
}

// The rest of a division, of integers or floats as Python's %.
double rest(Interpreter& in, const Value& value, const Value& by) {
  if (!value.is_number() || !by.is_number()) fail("this test needs numbers, got " + std::string(type_name(value)));
  return in.binary("%", value, by).as_double();
}

bool divisible(Interpreter& in, const Value& input, const Arguments& arguments) {
  return rest(in, input, operand(arguments)) == 0;
}

bool iterable(const Value& value) {
  return value.is_sequence() || value.is_string() || value.type == Type::kDict || value.is_undefined();
}

// "is": for what Python keeps once (None, booleans) and for equal small values of the same type.
bool same(Interpreter&, const Value& input, const Arguments& arguments) {
  const Value& other = operand(arguments);
  if (input.type != other.type) return false;
  if (input.is_sequence() || input.type == Type::kDict || input.type == Type::kNamespace)
    return input.data == other.data;
  return equal(input, other);
}

#define FOVEA_TEST(expression)                                      \
  [](Interpreter& in, const Value& v, const Arguments& a) -> bool { \
    (void)in;                                                       \
    (void)a;                                                        \
    return expression;                                              \
  }

constexpr auto kTests = std::to_array<std::pair<std::string_view, Test>>({
    {"boolean", FOVEA_TEST(v.type == Type::kBool)},
    {"callable", FOVEA_TEST(v.is_callable() || v.is_undefined())},
    {"defined", FOVEA_TEST(!v.is_undefined())},
    {"divisibleby", divisible},
    {"eq", FOVEA_TEST(equal(v, operand(a)))},
    {"equalto", FOVEA_TEST(equal(v, operand(a)))},
    {"==", FOVEA_TEST(equal(v, operand(a)))},
    {"escaped", FOVEA_TEST(false)},
    {"even", FOVEA_TEST(rest(in, v, Value::of(std::int64_t{2})) == 0)},
    {"false", FOVEA_TEST(v.type == Type::kBool && !v.boolean)},
    {"filter", FOVEA_TEST(v.is_string() && find_filter(v.text()) != nullptr)},
    {"float", FOVEA_TEST(v.type == Type::kFloat)},
    {"ge", FOVEA_TEST(order(v, a) >= 0)},
    {">=", FOVEA_TEST(order(v, a) >= 0)},
    {"greaterthan", FOVEA_TEST(order(v, a) > 0)},
    {"gt", FOVEA_TEST(order(v, a) > 0)},
    {">", FOVEA_TEST(order(v, a) > 0)},
    {"in", FOVEA_TEST(in.contains(operand(a), v))},
    {"integer", FOVEA_TEST(v.type == Type::kInt)},
    {"iterable", FOVEA_TEST(iterable(v))},
    {"le", FOVEA_TEST(order(v, a) <= 0)},
    {"<=", FOVEA_TEST(order(v, a) <= 0)},
    {"lessthan", FOVEA_TEST(order(v, a) < 0)},
    {"lower", FOVEA_TEST(classify(in.text(v), "islower"))},
    {"lt", FOVEA_TEST(order(v, a) < 0)},
    {"<", FOVEA_TEST(order(v, a) < 0)},
    {"mapping", FOVEA_TEST(v.type == Type::kDict)},
    {"ne", FOVEA_TEST(!equal(v, operand(a)))},
    {"!=", FOVEA_TEST(!equal(v, operand(a)))},
    {"none", FOVEA_TEST(v.is_none())},
    {"number", FOVEA_TEST(v.is_number())},
    {"odd", FOVEA_TEST(rest(in, v, Value::of(std::int64_t{2})) == 1)},
    {"sameas", same},
    {"sequence", FOVEA_TEST(iterable(v))},
    {"string", FOVEA_TEST(v.is_string())},
    {"test", FOVEA_TEST(v.is_string() && find_test(v.text()) != nullptr)},
    {"true", FOVEA_TEST(v.type == Type::kBool && v.boolean)},
    {"undefined", FOVEA_TEST(v.is_undefined())},
    {"upper", FOVEA_TEST(classify(in.text(v), "isupper"))},
});

#undef FOVEA_TEST

}  // namespace

Test find_test(std::string_view name) {
  const auto found = std::find_if(kTests.begin(), kTests.end(), [&](const auto& entry) { return entry.first == name; });
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace fovea::jinja
