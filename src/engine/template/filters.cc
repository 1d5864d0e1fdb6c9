// The filters of the template language ("value | name(arguments)"), with Jinja2's meaning. Looked up by the
// interpreter.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "engine/template/interpreter.h"
#include "engine/template/text.h"
#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

bool flag(const Arguments& arguments, std::size_t position, std::string_view name, bool fallback) {
  const Value* value = arguments.find(position, name);
  return value == nullptr ? fallback : truthy(*value);
}

std::int64_t integer(const Arguments& arguments, std::size_t position, std::string_view name, std::int64_t fallback) {
  const Value* value = arguments.find(position, name);
  if (value == nullptr) return fallback;
  if (!value->is_integral())
    fail("argument '" + std::string(name) + "' must be an integer, got " + std::string(type_name(*value)));
  return value->as_int();
}

std::string text_argument(Interpreter& in, const Arguments& arguments, std::size_t position, std::string_view name,
                          std::string_view fallback) {
  const Value* value = arguments.find(position, name);
  return value == nullptr ? std::string(fallback) : in.text(*value);
}

void no_undefined(const Value& value) {
  if (value.is_undefined()) fail("'" + std::string(value.text()) + "' is undefined");
}

Value filter_abs(Interpreter&, const Value& input, const Arguments&) {
  if (!input.is_number()) fail("abs needs a number, got " + std::string(type_name(input)));
  if (input.type == Type::kFloat) return Value::of(std::fabs(input.number));
  if (input.as_int() == INT64_MIN) fail("an integer does not fit 64 bits");
  return Value::of(std::abs(input.as_int()));
}

Value filter_attr(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* name = arguments.find(0, "name");
  if (name == nullptr || !name->is_string()) fail("attr needs the name of an attribute");
  if (input.type == Type::kDict && !has_method(input, name->text())) return Value::undefined(name->text());
  return in.attribute(input, name->text());
}

Value filter_batch(Interpreter& in, const Value& input, const Arguments& arguments) {
  const std::int64_t size = integer(arguments, 0, "linecount", 1);
  if (size < 1) fail("batch needs a size of at least 1");
  const Value* fill = arguments.find(1, "fill_with");
  std::vector<Value> rows, row;
  for (const Value& item : in.items(input)) {
    if (row.size() == static_cast<std::size_t>(size)) rows.push_back(in.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    in.step(static_cast<std::size_t>(size));
    while (fill != nullptr && !fill->is_none() && row.size() < static_cast<std::size_t>(size)) row.push_back(*fill);
    rows.push_back(in.list(std::move(row)));
  }
  return in.list(std::move(rows));
}

Value filter_capitalize(Interpreter& in, const Value& input, const Arguments&) {
  return in.string(capitalize(in.text(input)));
}

Value filter_center(Interpreter& in, const Value& input, const Arguments& arguments) {
  Arguments forwarded;
  forwarded.values.push_back(Value::of(integer(arguments, 0, "width", 80)));
  return call_method(in, {in.string(in.text(input)), "center"}, forwarded);
}

Value filter_default(Interpreter&, const Value& input, const Arguments& arguments) {
  arguments.check("default", 2, {"default_value", "boolean"});
  if (!input.is_undefined() && !(flag(arguments, 1, "boolean", false) && !truthy(input))) return input;
  const Value* value = arguments.find(0, "default_value");
  return value == nullptr ? Value::string("") : *value;
}

// Sort keys: strings compare without case unless told otherwise.
Value sort_key(Interpreter& in, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return in.string(lower(value.text()));
}

void sort_by(Interpreter& in, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  in.step(keyed.size() * 16);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    in.step();
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
}

Value filter_dictsort(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (input.type != Type::kDict) fail("dictsort needs a dict, got " + std::string(type_name(input)));
  const bool sensitive = flag(arguments, 0, "case_sensitive", false);
  const std::string by = text_argument(in, arguments, 1, "by", "key");
  if (by != "key" && by != "value") fail("dictsort: 'by' must be 'key' or 'value'");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict->items) {
    keyed.emplace_back(sort_key(in, by == "key" ? key : value, sensitive), in.list({key, value}, true));
  }
  sort_by(in, keyed, flag(arguments, 2, "reverse", false));
  std::vector<Value> sorted;
  for (const auto& [key, pair] : keyed) sorted.push_back(pair);
  return in.list(std::move(sorted));
}

Value filter_escape(Interpreter& in, const Value& input, const Arguments&) {
  return in.string(escape_html(in.text(input)));
}

Value filter_first(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is_sequence())
    return input.list->items.empty() ? Value::undefined("first item") : input.list->items.front();
  if (input.is_string() && input.size != 0)
    return Value::string(input.text().substr(0, unicode::lead_length(input.data[0])));
  const std::vector<Value> items = in.items(input);
  return items.empty() ? Value::undefined("first item") : items.front();
}

Value filter_last(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is_sequence()) return input.list->items.empty() ? Value::undefined("last item") : input.list->items.back();
  const std::vector<Value> items = in.items(input);
  return items.empty() ? Value::undefined("last item") : items.back();
}

// The whole text as a number, as Python's int() and float() read it; false if it is none.
bool parse_float(std::string_view text, double& value) {
  std::string plain(strip(text, {}, true, true));
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  std::string_view digits = plain;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits.starts_with('+')) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size();
}

bool parse_int(std::string_view text, int base, std::int64_t& value) {
  std::string plain(strip(text, {}, true, true));
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  const bool negative = plain.starts_with('-');
  if (negative || plain.starts_with('+')) plain.erase(0, 1);
  const auto prefix = plain.size() > 2 && plain[0] == '0' ? plain[1] | 32 : 0;
  if ((prefix == 'x' && base == 16) || (prefix == 'o' && base == 8) || (prefix == 'b' && base == 2)) plain.erase(0, 2);
  if (plain.empty() || plain[0] == '-') return false;
  if (negative) plain.insert(0, "-");
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (error == std::errc::result_out_of_range) fail("an integer does not fit 64 bits");
  return error == std::errc() && end == plain.data() + plain.size();
}

Value filter_float(Interpreter&, const Value& input, const Arguments& arguments) {
  no_undefined(input);
  const Value* fallback = arguments.find(0, "default");
  if (input.is_number()) return Value::of(input.as_double());
  double value = 0;
  if (input.is_string() && parse_float(input.text(), value)) return Value::of(value);
  return fallback == nullptr ? Value::of(0.0) : *fallback;
}

Value filter_int(Interpreter&, const Value& input, const Arguments& arguments) {
  no_undefined(input);
  const Value* fallback = arguments.find(0, "default");
  const auto base = static_cast<int>(integer(arguments, 1, "base", 10));
  if (base < 2 || base > 36) fail("int: base must be 2 to 36");
  if (input.is_integral()) return Value::of(input.as_int());
  double number = 0;
  bool valid = input.type == Type::kFloat;
  if (valid) {
    number = input.number;
  } else if (input.is_string()) {
    std::int64_t value = 0;
    if (parse_int(input.text(), base, value)) return Value::of(value);
    valid = parse_float(input.text(), number);
  }
  if (!valid || std::isnan(number)) return fallback == nullptr ? Value::of(std::int64_t{0}) : *fallback;
  if (std::isinf(number) || std::fabs(number) >= 9.2e18) fail("an integer does not fit 64 bits");
  return Value::of(static_cast<std::int64_t>(number));
}

Value filter_format(Interpreter& in, const Value& input, const Arguments& arguments) {
  return in.string(format_percent(in, in.text(input), arguments));
}

Value filter_groupby(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* by = arguments.find(0, "attribute");
  if (by == nullptr) fail("groupby needs an attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : in.items(input)) {
    Value key = in.path(item, *by);
    const Value* fallback = arguments.find(1, "default");
    if (key.is_undefined() && fallback != nullptr) key = *fallback;
    keyed.emplace_back(key, item);
  }
  const bool sensitive = flag(arguments, 2, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> sorted;
  for (const auto& [key, item] : keyed) sorted.emplace_back(sort_key(in, key, sensitive), in.list({key, item}, true));
  sort_by(in, sorted, false);
  std::vector<Value> groups, members;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    members.push_back(sorted[i].second.list->items[1]);
    if (i + 1 < sorted.size() && equal(sorted[i].first, sorted[i + 1].first)) continue;
    const Value key = sorted[i + 1 - members.size()].second.list->items[0];
    groups.push_back(in.list({key, in.list(std::exchange(members, {}))}, true));
  }
  return in.list(std::move(groups));
}

Value filter_indent(Interpreter& in, const Value& input, const Arguments& arguments) {
  arguments.check("indent", 3, {"width", "first", "blank"});
  const Value* width = arguments.find(0, "width");
  std::string unit(4, ' ');
  if (width != nullptr && width->is_string()) {
    unit = width->text();
  } else if (width != nullptr) {
    const std::int64_t count = integer(arguments, 0, "width", 4);
    if (count > 10000) fail("indent: width must be at most 10000");
    unit.assign(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), ' ');
  }
  const bool blank = flag(arguments, 2, "blank", false);
  if (!input.is_string()) fail("indent needs a str, got " + std::string(type_name(input)));
  const std::string text = in.text(input) + "\n";
  const auto lines = split_lines(text, false);
  in.arena().charge(text.size() + lines.size() * unit.size());
  std::string out = flag(arguments, 1, "first", false) ? unit : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out.push_back('\n');
    if (i != 0 && (blank || !lines[i].empty())) out.append(unit);
    out.append(lines[i]);
  }
  return in.string(std::move(out));
}

Value filter_items(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is_undefined()) return in.list({});
  if (input.type != Type::kDict) fail("items needs a dict, got " + std::string(type_name(input)));
  return call_method(in, {input, "items"}, {});
}

Value filter_join(Interpreter& in, const Value& input, const Arguments& arguments) {
  arguments.check("join", 2, {"d", "attribute"});
  const std::string separator = text_argument(in, arguments, 0, "d", "");
  const Value* attribute = arguments.find(1, "attribute");
  std::string joined;
  bool first = true;
  for (const Value& item : in.items(input)) {
    if (!first) joined.append(separator);
    first = false;
    joined.append(in.text(attribute == nullptr || attribute->is_none() ? item : in.path(item, *attribute)));
    if (joined.size() > in.limits().output_bytes) fail("join makes more text than the template may print");
  }
  in.step(joined.size() / 32);
  return in.string(std::move(joined));
}

Value filter_length(Interpreter& in, const Value& input, const Arguments&) {
  return Value::of(static_cast<std::int64_t>(in.length(input)));
}

Value filter_list(Interpreter& in, const Value& input, const Arguments&) { return in.list(in.items(input)); }
Value filter_lower(Interpreter& in, const Value& input, const Arguments&) { return in.string(lower(in.text(input))); }
Value filter_upper(Interpreter& in, const Value& input, const Arguments&) { return in.string(upper(in.text(input))); }

Value filter_map(Interpreter& in, const Value& input, const Arguments& arguments) {
  std::vector<Value> made;
  const std::vector<Value> items = in.items(input);
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") fallback = &value;
  }
  if (arguments.values.empty() && attribute != nullptr) {
    for (const Value& item : items) {
      const Value value = in.path(item, *attribute);
      made.push_back(value.is_undefined() && fallback != nullptr ? *fallback : value);
    }
    return in.list(std::move(made));
  }
  if (arguments.values.empty() || !arguments.values[0].is_string())
    fail("map needs the name of a filter or attribute=");
  const Filter filter = find_filter(arguments.values[0].text());
  if (filter == nullptr) fail("there is no filter '" + std::string(arguments.values[0].text()) + "'");
  Arguments rest;
  rest.values.assign(arguments.values.begin() + 1, arguments.values.end());
  rest.named = arguments.named;
  for (const Value& item : items) made.push_back(filter(in, item, rest));
  return in.list(std::move(made));
}

Value extreme(Interpreter& in, const Value& input, const Arguments& arguments, bool largest) {
  const bool sensitive = flag(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.find(1, "attribute");
  Value best = Value::undefined("the sequence is empty"), best_key;
  for (const Value& item : in.items(input)) {
    const Value key =
        sort_key(in, attribute == nullptr || attribute->is_none() ? item : in.path(item, *attribute), sensitive);
    if (!best.is_undefined() && (largest ? compare(key, best_key) <= 0 : compare(key, best_key) >= 0)) continue;
    best = item;
    best_key = key;
  }
  return best;
}

Value filter_max(Interpreter& in, const Value& input, const Arguments& arguments) {
  return extreme(in, input, arguments, true);
}
Value filter_min(Interpreter& in, const Value& input, const Arguments& arguments) {
  return extreme(in, input, arguments, false);
}

// select, reject, selectattr, rejectattr: the arguments are [attribute,] test, arguments of the test.
Value choose(Interpreter& in, const Value& input, const Arguments& arguments, bool by_attribute, bool keep) {
  std::size_t used = 0;
  Value attribute;
  if (by_attribute) {
    if (arguments.values.empty()) fail("selectattr and rejectattr need the name of an attribute");
    attribute = arguments.values[used++];
  }
  Test test = nullptr;
  Arguments rest;
  if (used < arguments.values.size()) {
    const Value& name = arguments.values[used++];
    test = name.is_string() ? find_test(name.text()) : nullptr;
    if (test == nullptr) fail("there is no test '" + in.text(name) + "'");
    rest.values.assign(arguments.values.begin() + static_cast<std::ptrdiff_t>(used), arguments.values.end());
    rest.named = arguments.named;
  }
  std::vector<Value> kept;
  for (const Value& item : in.items(input)) {
    const Value value = by_attribute ? in.path(item, attribute) : item;
    if ((test == nullptr ? truthy(value) : test(in, value, rest)) == keep) kept.push_back(item);
  }
  return in.list(std::move(kept));
}

Value filter_select(Interpreter& in, const Value& input, const Arguments& a) {
  return choose(in, input, a, false, true);
}
Value filter_reject(Interpreter& in, const Value& input, const Arguments& a) {
  return choose(in, input, a, false, false);
}
Value filter_selectattr(Interpreter& in, const Value& input, const Arguments& a) {
  return choose(in, input, a, true, true);
}
Value filter_rejectattr(Interpreter& in, const Value& input, const Arguments& a) {
  return choose(in, input, a, true, false);
}

Value filter_replace(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value *what = arguments.find(0, "old"), *with = arguments.find(1, "new");
  if (what == nullptr || with == nullptr) fail("replace needs the old and the new text");
  Arguments forwarded;
  forwarded.values = {in.string(in.text(*what)), in.string(in.text(*with))};
  const Value* count = arguments.find(2, "count");
  if (count != nullptr && !count->is_none()) forwarded.values.push_back(*count);
  return call_method(in, {in.string(in.text(input)), "replace"}, forwarded);
}

Value filter_reverse(Interpreter& in, const Value& input, const Arguments&) {
  std::vector<Value> items = in.items(input);
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return in.list(std::move(items));
  std::string reversed;
  for (const Value& character : items) reversed.append(character.text());
  return in.string(std::move(reversed));
}

Value filter_round(Interpreter& in, const Value& input, const Arguments& arguments) {
  no_undefined(input);
  if (!input.is_number()) fail("round needs a number, got " + std::string(type_name(input)));
  const std::int64_t precision = integer(arguments, 0, "precision", 0);
  const std::string method = text_argument(in, arguments, 1, "method", "common");
  const double value = input.as_double();
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double whole = method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale);
    return Value::of((whole + 0.0) / scale);  // no negative zero, as whole is an integer in the reference
  }
  if (method != "common") fail("round: method must be common, ceil or floor");
  if (input.is_integral() && precision >= 0) return Value::of(input.as_int());
  if (precision < 0 || precision > 300 || !std::isfinite(value)) {
    const double scale = std::pow(10.0, static_cast<double>(-std::max<std::int64_t>(precision, -300)));
    return precision > 300 || !std::isfinite(value) ? Value::of(value)
                                                    : Value::of(std::nearbyint(value / scale) * scale);
  }
  // Correctly rounded in decimal, halves to even, as Python's round().
  char digits[700];
  const auto [end, error] =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, static_cast<int>(precision));
  double rounded = value;
  if (error == std::errc()) std::from_chars(digits, end, rounded);
  return Value::of(rounded);
}

Value filter_same(Interpreter&, const Value& input, const Arguments&) { return input; }

Value filter_slice(Interpreter& in, const Value& input, const Arguments& arguments) {
  const std::int64_t count = integer(arguments, 0, "slices", 1);
  if (count < 1 || count > 100000) fail("slice needs a count of 1 to 100000");
  const Value* fill = arguments.find(1, "fill_with");
  const std::vector<Value> items = in.items(input);
  const std::size_t slices = static_cast<std::size_t>(count), each = items.size() / slices,
                    more = items.size() % slices;
  std::vector<Value> rows;
  std::size_t at = 0;
  for (std::size_t i = 0; i < slices; ++i) {
    const std::size_t size = each + (i < more ? 1 : 0);
    std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(at),
                           items.begin() + static_cast<std::ptrdiff_t>(at + size));
    if (fill != nullptr && !fill->is_none() && i >= more) row.push_back(*fill);
    rows.push_back(in.list(std::move(row)));
    at += size;
  }
  return in.list(std::move(rows));
}

Value filter_sort(Interpreter& in, const Value& input, const Arguments& arguments) {
  arguments.check("sort", 3, {"reverse", "case_sensitive", "attribute"});
  const bool sensitive = flag(arguments, 1, "case_sensitive", false);
  const Value* attribute = arguments.find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : in.items(input)) {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      std::vector<Value> parts;
      for (const std::string_view part : split(in.string(in.text(*attribute)).text(), ",", -1)) {
        parts.push_back(sort_key(in, in.path(item, Value::string(part)), sensitive));
      }
      key = in.list(std::move(parts));
    } else {
      key = sort_key(in, item, sensitive);
    }
    keyed.emplace_back(key, item);
  }
  sort_by(in, keyed, flag(arguments, 0, "reverse", false));
  std::vector<Value> sorted;
  for (const auto& [key, item] : keyed) sorted.push_back(item);
  return in.list(std::move(sorted));
}

Value filter_string(Interpreter& in, const Value& input, const Arguments&) {
  return input.is_string() ? input : in.string(in.text(input));
}

Value filter_sum(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.find(0, "attribute");
  const Value* start = arguments.find(1, "start");
  Value total = start == nullptr ? Value::of(std::int64_t{0}) : *start;
  if (total.is_string()) fail("sum does not add strings, use join");
  for (const Value& item : in.items(input)) {
    total = in.binary("+", total, attribute == nullptr || attribute->is_none() ? item : in.path(item, *attribute));
  }
  return total;
}

Value filter_title(Interpreter& in, const Value& input, const Arguments&) {
  return in.string(title_filter(in.text(input)));
}

// The form that chat templates rely on: plain json.dumps, no HTML escapes, characters as they are.
Value filter_tojson(Interpreter& in, const Value& input, const Arguments& arguments) {
  JsonStyle style;
  const auto get = [&](std::string_view name) { return arguments.find(SIZE_MAX, name); };
  arguments.check("tojson", 1, {"ensure_ascii", "indent", "separators", "sort_keys"});
  // The first positional argument of the reference is ensure_ascii.
  const Value* ascii = arguments.find(0, "ensure_ascii");
  style.ascii = ascii != nullptr && truthy(*ascii);
  const Value* indent = get("indent");
  if (indent != nullptr && indent->is_string()) {
    style.indent = 0;
    style.indent_text = indent->text();
  } else if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_integral() || indent->as_int() > 64) fail("tojson: indent must be an integer of at most 64");
    style.indent = static_cast<int>(std::max<std::int64_t>(indent->as_int(), 0));
  }
  const Value* separators = get("separators");
  if (separators != nullptr && separators->is_sequence() && separators->list->items.size() == 2) {
    style.item_separator = in.text(separators->list->items[0]);
    style.key_separator = in.text(separators->list->items[1]);
  }
  const Value* sort_keys = get("sort_keys");
  style.sort_keys = sort_keys != nullptr && truthy(*sort_keys);
  std::string made = to_json(input, style, in.limits().output_bytes);
  in.step(made.size() / 16);
  return in.string(std::move(made));
}

Value filter_trim(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value text = input.is_string() ? input : in.string(in.text(input));
  const Value* chars = arguments.find(0, "chars");
  if (chars == nullptr || chars->is_none()) return Value::string(strip(text.text(), {}, true, true));
  if (!chars->is_string()) fail("trim: chars must be a str");
  return Value::string(strip(text.text(), chars->text(), true, true, true));
}

Value filter_truncate(Interpreter& in, const Value& input, const Arguments& arguments) {
  const std::int64_t length = integer(arguments, 0, "length", 255), leeway = integer(arguments, 3, "leeway", 5);
  const std::string end = text_argument(in, arguments, 2, "end", "...");
  const std::string text = in.text(input);
  const auto size = static_cast<std::int64_t>(code_points(text)), tail = static_cast<std::int64_t>(code_points(end));
  if (length < tail) fail("truncate: length must be at least " + std::to_string(tail));
  if (leeway < 0) fail("truncate: leeway must not be negative");
  if (size - leeway <= length) return in.string(text);
  std::string kept = text.substr(0, offset_of(text, static_cast<std::size_t>(length - tail)));
  if (!flag(arguments, 1, "killwords", false)) kept.resize(std::min(kept.rfind(' '), kept.size()));
  return in.string(kept + end);
}

// What Python can put into a set.
bool hashable(const Value& value) {
  if (value.type == Type::kTuple) return std::all_of(value.list->items.begin(), value.list->items.end(), hashable);
  return value.type != Type::kList && value.type != Type::kDict;
}

Value filter_unique(Interpreter& in, const Value& input, const Arguments& arguments) {
  const bool sensitive = flag(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.find(1, "attribute");
  std::vector<Value> kept, keys;
  for (const Value& item : in.items(input)) {
    const Value key =
        sort_key(in, attribute == nullptr || attribute->is_none() ? item : in.path(item, *attribute), sensitive);
    in.step(keys.size());
    if (!hashable(key)) fail("unique cannot compare values of type " + std::string(type_name(key)));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& seen) { return equal(seen, key); })) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return in.list(std::move(kept));
}

Value filter_wordcount(Interpreter& in, const Value& input, const Arguments&) {
  std::int64_t words = 0;
  bool in_word = false;
  const std::string text = in.text(input);
  for (std::size_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    const bool word = unicode::is_word(next.code);
    words += word && !in_word;
    in_word = word;
    at += next.length;
  }
  return Value::of(words);
}

constexpr auto kFilters = std::to_array<std::pair<std::string_view, Filter>>({
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"forceescape", filter_escape},
    {"format", filter_format},
    {"groupby", filter_groupby},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_same},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"unique", filter_unique},
    {"upper", filter_upper},
    {"wordcount", filter_wordcount},
});

}  // namespace

Filter find_filter(std::string_view name) {
  const auto found =
      std::find_if(kFilters.begin(), kFilters.end(), [&](const auto& entry) { return entry.first == name; });
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace fovea::jinja
