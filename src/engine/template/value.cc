// Implementation of value.h: truth, equality, order, str() and repr(). JSON is in value_json.cc.
#include "engine/template/value.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {

void fail(const std::string& message) { throw TemplateError(0, message); }

Value Arena::string(std::string text) {
  charge(text.size() + sizeof(std::string));
  return Value::string(strings_.emplace_back(std::move(text)));
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string() && !index_.empty()) {
    const auto found = index_.find(key.text());
    return found == index_.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [known, value] : items) {
    if (known.type == key.type && key.is_string() ? known.text() == key.text() : equal(known, key)) return &value;
  }
  return nullptr;
}

void Dict::set(const Value& key, const Value& value) {
  const Value* known = find(key);
  if (known != nullptr) {
    *const_cast<Value*>(known) = value;
    return;
  }
  items.emplace_back(key, value);
  if (items.size() == kIndexFrom) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].first.is_string()) index_.emplace(items[i].first.text(), i);
    }
  } else if (items.size() > kIndexFrom && key.is_string()) {
    index_.emplace(key.text(), items.size() - 1);
  }
}

bool truthy(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kNone: return false;
    case Type::kBool: return value.boolean;
    case Type::kInt: return value.integer != 0;
    case Type::kFloat: return value.number != 0;
    case Type::kString: return value.size != 0;
    case Type::kList:
    case Type::kTuple: return !value.list->items.empty();
    case Type::kDict: return !value.dict->items.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) fail("values nest too deep to compare");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone: return true;
    case Type::kString: return a.text() == b.text();
    case Type::kList:
    case Type::kTuple: {
      const auto &left = a.list->items, &right = b.list->items;
      if (left.size() != right.size()) return false;
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (!equal(left[i], right[i], depth + 1)) return false;
      }
      return true;
    }
    case Type::kDict: {
      if (a.dict->items.size() != b.dict->items.size()) return false;
      for (const auto& [key, value] : a.dict->items) {
        const Value* other = b.dict->find(key);
        if (other == nullptr || !equal(value, *other, depth + 1)) return false;
      }
      return true;
    }
    default: return a.data == b.data;
  }
}

int compare(const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) fail("values nest too deep to compare");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    return a.as_double() < b.as_double() ? -1 : a.as_double() > b.as_double();
  }
  if (a.is_string() && b.is_string()) {
    const int order = a.text().compare(b.text());  // byte order of UTF-8 is code point order
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_sequence() && a.type == b.type) {
    const auto &left = a.list->items, &right = b.list->items;
    for (std::size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!equal(left[i], right[i], depth + 1)) return compare(left[i], right[i], depth + 1);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size();
  }
  fail("cannot order " + std::string(type_name(a)) + " and " + std::string(type_name(b)));
}

std::string_view type_name(const Value& value) {
  switch (value.type) {
    case Type::kUndefined: return "undefined";
    case Type::kNone: return "None";
    case Type::kBool: return "bool";
    case Type::kInt: return "int";
    case Type::kFloat: return "float";
    case Type::kString: return "str";
    case Type::kList: return "list";
    case Type::kTuple: return "tuple";
    case Type::kDict: return "dict";
    case Type::kNamespace: return "namespace";
    case Type::kLoop: return "loop";
    case Type::kMacro: return "macro";
    default: return "function";
  }
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[64];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  const std::size_t mark = text.find('e');
  int exponent = 0;
  const char* first = text.data() + mark + 1 + (text[mark + 1] == '+' ? 1 : 0);
  std::from_chars(first, text.data() + text.size(), exponent);
  const bool negative = text[0] == '-';
  std::string mantissa;
  for (const char c : text.substr(0, mark)) {
    if (c >= '0' && c <= '9') mantissa.push_back(c);
  }
  std::string out = negative ? "-" : "";
  if (exponent >= -4 && exponent < 16) {
    const int point = exponent + 1;  // digits before the decimal point
    if (point <= 0) {
      out.append("0.").append(static_cast<std::size_t>(-point), '0').append(mantissa);
    } else if (static_cast<std::size_t>(point) >= mantissa.size()) {
      out.append(mantissa).append(static_cast<std::size_t>(point) - mantissa.size(), '0').append(".0");
    } else {
      out.append(mantissa, 0, static_cast<std::size_t>(point))
          .append(".")
          .append(mantissa, static_cast<std::size_t>(point));
    }
    return out;
  }
  out.push_back(mantissa[0]);
  if (mantissa.size() > 1) out.append(".").append(mantissa, 1);
  out.append(exponent < 0 ? "e-" : "e+");
  const int magnitude = exponent < 0 ? -exponent : exponent;
  if (magnitude < 10) out.push_back('0');
  return out.append(std::to_string(magnitude));
}

namespace {

bool printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void append_hex(std::string& out, const char* prefix, char32_t code, int digits) {
  out.append(prefix);
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[(code >> shift) & 15]);
}

void append_string_repr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.push_back(quote);
  for (std::size_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    const char32_t c = next.code;
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (printable(c)) {
      out.append(text.substr(at, next.length));
    } else if (c < 0x100) {
      append_hex(out, "\\x", c, 2);
    } else if (c < 0x10000) {
      append_hex(out, "\\u", c, 4);
    } else {
      append_hex(out, "\\U", c, 8);
    }
    at += next.length;
  }
  out.push_back(quote);
}

void append_items(std::string& out, const std::vector<Value>& items, std::size_t limit, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out.append(", ");
    append_repr(out, items[i], limit, depth + 1);
  }
}

}  // namespace

void append_repr(std::string& out, const Value& value, std::size_t limit, int depth) {
  if (depth > kMaxValueDepth) fail("a value nests too deep to print");
  if (out.size() > limit) fail("a printed value is larger than " + std::to_string(limit) + " bytes");
  switch (value.type) {
    case Type::kUndefined: out.append("Undefined"); break;
    case Type::kNone: out.append("None"); break;
    case Type::kBool: out.append(value.boolean ? "True" : "False"); break;
    case Type::kInt: out.append(std::to_string(value.integer)); break;
    case Type::kFloat: out.append(float_text(value.number)); break;
    case Type::kString: append_string_repr(out, value.text()); break;
    case Type::kList:
      out.push_back('[');
      append_items(out, value.list->items, limit, depth);
      out.push_back(']');
      break;
    case Type::kTuple:
      out.push_back('(');
      append_items(out, value.list->items, limit, depth);
      out.append(value.list->items.size() == 1 ? ",)" : ")");
      break;
    case Type::kDict: {
      out.push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.dict->items) {
        if (!first) out.append(", ");
        first = false;
        append_repr(out, key, limit, depth + 1);
        out.append(": ");
        append_repr(out, item, limit, depth + 1);
      }
      out.push_back('}');
      break;
    }
    default: out.append("<").append(type_name(value)).append(">");
  }
}

std::string to_text(const Value& value, std::size_t limit) {
  if (value.is_string()) return std::string(value.text());
  if (value.is_undefined()) return {};
  std::string out;
  append_repr(out, value, limit);
  return out;
}

}  // namespace fovea::jinja
