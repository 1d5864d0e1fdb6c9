// Values of the template language: what Jinja takes from Python, without Python. A Value is a small handle; strings,
// lists and dictionaries live in the Arena of one rendering and die with it, so that a hostile template can neither
// leak cycles nor outgrow its limit. Used by every file of this folder.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fovea::jinja {

struct List;
struct Dict;
struct Namespace;
struct LoopState;
struct Macro;
struct Builtin;
struct BoundMethod;

// How the evaluator reports a failure inside; ChatTemplate turns it into a Status. Line 0 means "not known yet".
struct TemplateError : std::runtime_error {
  TemplateError(int line, const std::string& message) : std::runtime_error(message), line(line) {}
  int line;
};
[[noreturn]] void fail(const std::string& message);

enum class Type : std::uint8_t {
  kUndefined,  // text holds what was looked for
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kBuiltin,
  kMethod
};

struct Value {
  Type type = Type::kUndefined;
  union {
    bool boolean;
    std::int64_t integer;
    double number;
    const char* data;
    List* list;
    Dict* dict;
    Namespace* space;
    LoopState* loop;
    Macro* macro;
    const Builtin* builtin;
    BoundMethod* method;
  };
  std::size_t size = 0;  // of the text

  Value() : data(nullptr) {}
  static Value none() { return typed(Type::kNone); }
  static Value undefined(std::string_view what = {}) { return with_text(Type::kUndefined, what); }
  static Value string(std::string_view text) { return with_text(Type::kString, text); }
  static Value of(bool value) {
    Value made = typed(Type::kBool);
    made.boolean = value;
    return made;
  }
  static Value of(std::int64_t value) {
    Value made = typed(Type::kInt);
    made.integer = value;
    return made;
  }
  static Value of(double value) {
    Value made = typed(Type::kFloat);
    made.number = value;
    return made;
  }
  static Value of(List* value, bool tuple = false) {
    Value made = typed(tuple ? Type::kTuple : Type::kList);
    made.list = value;
    return made;
  }
  static Value of(Dict* value) {
    Value made = typed(Type::kDict);
    made.dict = value;
    return made;
  }

  std::string_view text() const { return {data, size}; }
  bool is_undefined() const { return type == Type::kUndefined; }
  bool is_none() const { return type == Type::kNone; }
  bool is_string() const { return type == Type::kString; }
  bool is_sequence() const { return type == Type::kList || type == Type::kTuple; }
  bool is_integral() const { return type == Type::kInt || type == Type::kBool; }
  bool is_number() const { return is_integral() || type == Type::kFloat; }
  bool is_callable() const { return type == Type::kMacro || type == Type::kBuiltin || type == Type::kMethod; }
  std::int64_t as_int() const { return type == Type::kBool ? static_cast<std::int64_t>(boolean) : integer; }
  double as_double() const { return type == Type::kFloat ? number : static_cast<double>(as_int()); }

  static Value typed(Type type) {
    Value made;
    made.type = type;
    return made;
  }

 private:
  static Value with_text(Type type, std::string_view text) {
    Value made = typed(type);
    made.data = text.data();
    made.size = text.size();
    return made;
  }
};

struct List {
  std::vector<Value> items;
};

// Keeps the order of insertion, as Python does.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  // Null if the key is absent. Strings are found through an index once there are many.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const { return find(Value::string(key)); }
  void set(const Value& key, const Value& value);

 private:
  std::unordered_map<std::string_view, std::size_t> index_;  // string keys, from kIndexFrom entries on
  static constexpr std::size_t kIndexFrom = 12;
};

struct Namespace {
  Dict* attributes = nullptr;
};

struct LoopState {
  const std::vector<Value>* items = nullptr;
  std::size_t index = 0;
  std::size_t depth = 1;
  bool has_last_seen = false;  // loop.changed()
  Value last_seen;
};

struct BoundMethod {
  Value self;
  std::string_view name;
};

// Owns everything that one rendering makes, and counts it.
class Arena {
 public:
  explicit Arena(std::size_t limit) : limit_(limit) {}

  // Charges bytes against the limit; fails when it is exceeded.
  void charge(std::size_t bytes) {
    used_ += bytes;
    if (used_ > limit_) fail("the template uses more than " + std::to_string(limit_ >> 20) + " MiB of memory");
  }
  Value string(std::string text);
  List* list() { return keep(lists_); }
  Dict* dict() { return keep(dicts_); }
  Namespace* space() { return keep(spaces_); }
  LoopState* loop() { return keep(loops_); }
  BoundMethod* method() { return keep(methods_); }

 private:
  template <typename T>
  T* keep(std::deque<T>& pool) {
    charge(sizeof(T));
    return &pool.emplace_back();
  }
  std::size_t limit_;
  std::size_t used_ = 0;
  std::deque<std::string> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<LoopState> loops_;
  std::deque<BoundMethod> methods_;
};

inline constexpr int kMaxValueDepth = 200;  // nesting that printing and comparing follow

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
// Below zero, zero or above: Python's ordering of numbers, strings and sequences; fails for other pairs.
int compare(const Value& a, const Value& b, int depth = 0);
// Python's name of the type, for messages ("str", "dict", ...).
std::string_view type_name(const Value& value);

// Python's str() and repr(). Fails beyond `limit` bytes.
std::string to_text(const Value& value, std::size_t limit);
void append_repr(std::string& out, const Value& value, std::size_t limit, int depth = 0);
std::string float_text(double value);  // as Python's repr(float)

struct JsonStyle {
  int indent = -1;          // -1: one line
  std::string indent_text;  // overrides indent where not empty
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator;  // empty: Python's default
  std::string key_separator;
};
// json.dumps; fails for what JSON cannot hold.
std::string to_json(const Value& value, const JsonStyle& style, std::size_t limit);

}  // namespace fovea::jinja
