// Methods of strings, lists, dicts and loops, and the global functions of templates. Looked up by the interpreter.
// Methods that change a value are those that a list needs (append); dicts cannot be changed, as in the sandbox that
// chat templates are written for.
#include <algorithm>
#include <array>
#include <ctime>

#include "engine/template/interpreter.h"
#include "engine/template/text.h"
#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

constexpr std::array<std::string_view, 34> kStringMethods = {
    "strip", "lstrip",  "rstrip",  "split",      "rsplit",       "splitlines",   "startswith", "endswith",  "replace",
    "upper", "lower",   "title",   "capitalize", "format",       "find",         "rfind",      "index",     "count",
    "join",  "isdigit", "isalpha", "isalnum",    "isspace",      "islower",      "isupper",    "isnumeric", "isdecimal",
    "zfill", "ljust",   "rjust",   "center",     "removeprefix", "removesuffix", "casefold"};
constexpr std::array<std::string_view, 4> kListMethods = {"append", "index", "count", "copy"};
constexpr std::array<std::string_view, 5> kDictMethods = {"items", "keys", "values", "get", "copy"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle", "changed"};

constexpr std::int64_t kMaxRange = 100'000;
constexpr std::int64_t kMaxWidth = 1 << 20;

template <std::size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view text_argument(const Arguments& a, std::size_t position, std::string_view name,
                               std::string_view method) {
  const Value* value = a.find(position, name);
  if (value == nullptr || !value->is_string()) {
    fail(std::string(method) + " needs a str as argument " + std::to_string(position + 1) +
         (value == nullptr ? "" : ", got " + std::string(type_name(*value))));
  }
  return value->text();
}

std::int64_t int_argument(const Arguments& a, std::size_t position, std::string_view name, std::int64_t fallback) {
  const Value* value = a.find(position, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_integral())
    fail("argument '" + std::string(name) + "' must be an integer, got " + std::string(type_name(*value)));
  return value->as_int();
}

Value strings(Interpreter& in, const std::vector<std::string_view>& parts) {
  std::vector<Value> values;
  values.reserve(parts.size());
  for (const std::string_view part : parts) values.push_back(Value::string(part));
  in.step(parts.size());
  return in.list(std::move(values));
}

// startswith and endswith take one text or a tuple of them.
bool affix(std::string_view text, const Arguments& a, bool front, std::string_view method) {
  const auto matches = [&](std::string_view part) { return front ? text.starts_with(part) : text.ends_with(part); };
  const Value* what = a.find(0, "prefix");
  if (what != nullptr && what->type == Type::kTuple) {
    return std::any_of(what->list->items.begin(), what->list->items.end(), [&](const Value& part) {
      if (!part.is_string()) fail(std::string(method) + " needs a tuple of str");
      return matches(part.text());
    });
  }
  return matches(text_argument(a, 0, "prefix", method));
}

Value pad(Interpreter& in, std::string_view text, std::string_view method, const Arguments& a) {
  const std::int64_t width = int_argument(a, 0, "width", 0);
  if (width > kMaxWidth) fail(std::string(method) + ": width must be at most " + std::to_string(kMaxWidth));
  const auto size = static_cast<std::int64_t>(code_points(text));
  std::string fill = method == "zfill" ? "0" : " ";
  if (method != "zfill" && a.find(1, "fillchar") != nullptr) fill = text_argument(a, 1, "fillchar", method);
  if (code_points(fill) != 1) fail(std::string(method) + ": the fill must be one character");
  const std::int64_t missing = std::max<std::int64_t>(width - size, 0);
  std::int64_t left = 0;
  if (method == "rjust" || method == "zfill") left = missing;
  if (method == "center") left = missing / 2 + (missing & width & 1);
  std::string made;
  if (method == "zfill" && (text.starts_with('-') || text.starts_with('+'))) {
    made.push_back(text[0]);
    text.remove_prefix(1);
  }
  for (std::int64_t i = 0; i < left; ++i) made.append(fill);
  made.append(text);
  for (std::int64_t i = left; i < missing; ++i) made.append(fill);
  return in.string(std::move(made));
}

Value split_method(Interpreter& in, std::string_view text, std::string_view method, const Arguments& a) {
  const Value* separator = a.find(0, "sep");
  const std::int64_t most = int_argument(a, 1, "maxsplit", -1);
  if (separator == nullptr || separator->is_none()) {
    if (method == "rsplit" && most >= 0) fail("rsplit needs a separator when maxsplit is given");
    return strings(in, split_spaces(text, most));
  }
  const std::string_view by = text_argument(a, 0, "sep", method);
  if (by.empty()) fail("split: the separator is empty");
  return strings(in, method == "split" ? split(text, by, most) : split_from_right(text, by, most));
}

Value string_method(Interpreter& in, const Value& self, std::string_view name, const Arguments& a) {
  const std::string_view text = self.text();
  in.step(text.size() / 64);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const bool left = name != "rstrip", right = name != "lstrip";
    const Value* chars = a.find(0, "chars");
    if (chars == nullptr || chars->is_none()) return Value::string(strip(text, {}, left, right));
    return Value::string(strip(text, text_argument(a, 0, "chars", name), left, right, true));
  }
  if (name == "split" || name == "rsplit") return split_method(in, text, name, a);
  if (name == "splitlines")
    return strings(in, split_lines(text, a.find(0, "keepends") != nullptr && truthy(*a.find(0, "keepends"))));
  if (name == "startswith") return Value::of(affix(text, a, true, name));
  if (name == "endswith") return Value::of(affix(text, a, false, name));
  if (name == "replace") {
    const std::string_view what = text_argument(a, 0, "old", name), with = text_argument(a, 1, "new", name);
    const std::int64_t count = int_argument(a, 2, "count", -1);
    // The result's size is known before it is made.
    std::size_t times = what.empty() ? code_points(text) + 1 : 0;
    for (std::size_t at = 0; !what.empty() && (at = find(text, what, at)) != std::string_view::npos; at += what.size())
      ++times;
    if (count >= 0) times = std::min(times, static_cast<std::size_t>(count));
    in.arena().charge(times * with.size());
    return in.string(replace(text, what, with, count));
  }
  if (name == "upper") return in.string(upper(text));
  if (name == "lower" || name == "casefold") return in.string(lower(text));
  if (name == "title") return in.string(title(text));
  if (name == "capitalize") return in.string(capitalize(text));
  if (name == "format") return in.string(format_braces(in, text, a));
  if (name == "find" || name == "rfind" || name == "index") {
    const std::string_view what = text_argument(a, 0, "sub", name);
    const std::size_t found = name == "rfind" ? text.rfind(what) : find(text, what);
    if (name == "rfind") in.step(text.size());
    if (found == std::string_view::npos) {
      if (name == "index") fail("index: the text is not there");
      return Value::of(std::int64_t{-1});
    }
    return Value::of(static_cast<std::int64_t>(code_points(text.substr(0, found))));
  }
  if (name == "count") {
    const std::string_view what = text_argument(a, 0, "sub", name);
    if (what.empty()) return Value::of(static_cast<std::int64_t>(code_points(text) + 1));
    std::int64_t times = 0;
    for (std::size_t at = 0; (at = find(text, what, at)) != std::string_view::npos; at += what.size()) ++times;
    return Value::of(times);
  }
  if (name == "join") {
    if (a.values.size() != 1) fail("join needs one argument");
    std::string joined;
    bool first = true;
    for (const Value& item : in.items(a.values[0])) {
      if (!item.is_string()) fail("join needs str items, got " + std::string(type_name(item)));
      if (!first) joined.append(text);
      first = false;
      joined.append(item.text());
      if (joined.size() > in.limits().output_bytes) fail("join makes more text than the template may print");
    }
    return in.string(std::move(joined));
  }
  if (name == "removeprefix") {
    const std::string_view part = text_argument(a, 0, "prefix", name);
    return Value::string(text.starts_with(part) ? text.substr(part.size()) : text);
  }
  if (name == "removesuffix") {
    const std::string_view part = text_argument(a, 0, "suffix", name);
    return Value::string(text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text);
  }
  if (name == "zfill" || name == "ljust" || name == "rjust" || name == "center") return pad(in, text, name, a);
  return Value::of(classify(text, name));
}

Value list_method(Interpreter& in, const Value& self, std::string_view name, const Arguments& a) {
  std::vector<Value>& items = self.list->items;
  if (name == "copy") return in.list(items);
  if (a.values.size() != 1) fail(std::string(name) + " needs one argument");
  if (name == "append") {
    in.arena().charge(sizeof(Value));
    items.push_back(a.values[0]);
    return Value::none();
  }
  in.step(items.size());
  if (name == "count") {
    return Value::of(static_cast<std::int64_t>(
        std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, a.values[0]); })));
  }
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, a.values[0]); });
  if (found == items.end()) fail("index: the item is not in the list");
  return Value::of(static_cast<std::int64_t>(found - items.begin()));
}

Value dict_method(Interpreter& in, const Value& self, std::string_view name, const Arguments& a) {
  const auto& items = self.dict->items;
  if (name == "get") {
    if (a.values.empty()) fail("get needs a key");
    if (!a.values[0].is_string()) in.step(items.size());
    const Value* found = self.dict->find(a.values[0]);
    if (found != nullptr) return *found;
    const Value* fallback = a.find(1, "default");
    return fallback == nullptr ? Value::none() : *fallback;
  }
  in.step(items.size());
  if (name == "copy") {
    in.arena().charge(items.size() * sizeof(items[0]));
    Dict* made = in.arena().dict();
    for (const auto& [key, value] : items) made->set(key, value);
    return Value::of(made);
  }
  std::vector<Value> made;
  made.reserve(items.size());
  for (const auto& [key, value] : items) {
    made.push_back(name == "keys" ? key : name == "values" ? value : in.list({key, value}, true));
  }
  return in.list(std::move(made));
}

Value loop_method(Interpreter& in, LoopState& loop, std::string_view name, const Arguments& a) {
  if (name == "cycle") {
    if (a.values.empty()) fail("cycle needs items");
    return a.values[loop.index % a.values.size()];
  }
  const Value seen = in.list(a.values, true);
  const bool changed = !loop.has_last_seen || !equal(loop.last_seen, seen);
  loop.has_last_seen = true;
  loop.last_seen = seen;
  return Value::of(changed);
}

Value global_range(Interpreter& in, const Arguments& a) {
  a.check("range", 3, {});
  if (a.values.empty()) fail("range needs one to three integers");
  const auto at = [&](std::size_t i) { return int_argument(a, i, "range", 0); };
  const std::int64_t start = a.values.size() > 1 ? at(0) : 0, stop = at(a.values.size() > 1 ? 1 : 0);
  const std::int64_t stride = a.values.size() > 2 ? at(2) : 1;
  if (stride == 0) fail("range: the step must not be 0");
  // In 128 bits, where no bound can overflow.
  const __int128 distance = stride > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 magnitude = stride > 0 ? stride : -static_cast<__int128>(stride);
  const __int128 count = distance <= 0 ? 0 : (distance + magnitude - 1) / magnitude;
  if (count > kMaxRange) fail("range is longer than " + std::to_string(kMaxRange));
  std::vector<Value> values;
  std::int64_t value = start;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
    values.push_back(Value::of(value));
    if (i + 1 < static_cast<std::int64_t>(count)) value += stride;
  }
  in.step(values.size());
  return in.list(std::move(values));
}

Dict* dict_of_arguments(Interpreter& in, const Arguments& a, std::string_view what) {
  Dict* made = in.arena().dict();
  for (const Value& value : a.values) {
    if (value.type != Type::kDict) fail(std::string(what) + " needs keyword arguments or a dict");
    in.step(value.dict->items.size());
    for (const auto& [key, entry] : value.dict->items) made->set(key, entry);
  }
  for (const auto& [name, value] : a.named) made->set(Value::string(name), value);
  in.arena().charge(made->items.size() * sizeof(made->items[0]));
  return made;
}

Value global_namespace(Interpreter& in, const Arguments& a) {
  Value made = Value::typed(Type::kNamespace);
  made.space = in.arena().space();
  made.space->attributes = dict_of_arguments(in, a, "namespace");
  return made;
}

Value global_dict(Interpreter& in, const Arguments& a) { return Value::of(dict_of_arguments(in, a, "dict")); }

Value global_raise(Interpreter& in, const Arguments& a) {
  fail(a.values.empty() ? "the template refused its input" : in.text(a.values[0]));
}

Value global_now(Interpreter& in, const Arguments& a) {
  const std::string format(text_argument(a, 0, "format", "strftime_now"));
  if (format.size() > 256) fail("strftime_now: the format must be at most 256 bytes");
  if (format.empty()) return Value::string("");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string made(4096, '\0');
  made.resize(std::strftime(made.data(), made.size(), format.c_str(), &local));
  return in.string(std::move(made));
}

constexpr auto kGlobals = std::to_array<Builtin>({
    {"range", global_range},
    {"namespace", global_namespace},
    {"dict", global_dict},
    {"raise_exception", global_raise},
    {"strftime_now", global_now},
});

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  switch (self.type) {
    case Type::kString: return has(kStringMethods, name);
    case Type::kList: return has(kListMethods, name);
    case Type::kTuple: return name == "index" || name == "count";
    case Type::kDict: return has(kDictMethods, name);
    case Type::kLoop: return has(kLoopMethods, name);
    default: return false;
  }
}

Value call_method(Interpreter& interpreter, const BoundMethod& method, const Arguments& arguments) {
  interpreter.step();
  switch (method.self.type) {
    case Type::kString: return string_method(interpreter, method.self, method.name, arguments);
    case Type::kList:
    case Type::kTuple: return list_method(interpreter, method.self, method.name, arguments);
    case Type::kDict: return dict_method(interpreter, method.self, method.name, arguments);
    default: return loop_method(interpreter, *method.self.loop, method.name, arguments);
  }
}

const Builtin* find_global(std::string_view name) {
  const auto found =
      std::find_if(kGlobals.begin(), kGlobals.end(), [&](const Builtin& entry) { return entry.name == name; });
  return found == kGlobals.end() ? nullptr : &*found;
}

}  // namespace fovea::jinja
