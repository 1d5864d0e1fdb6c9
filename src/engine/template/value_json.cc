// to_json of value.h: json.dumps of Python, whose layout chat templates print tools with.
#include <algorithm>
#include <cmath>

#include "engine/template/value.h"
#include "engine/tokenizer/unicode.h"

namespace fovea::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::size_t limit) : style_(style), limit_(limit) {
    pretty_ = style.indent >= 0 || !style.indent_text.empty();
    unit_ = style.indent_text.empty() ? std::string(style.indent > 0 ? style.indent : 0, ' ') : style.indent_text;
    item_separator_ = !style.item_separator.empty() ? style.item_separator : pretty_ ? "," : ", ";
    key_separator_ = !style.key_separator.empty() ? style.key_separator : ": ";
  }

  void write(const Value& value, int depth) {
    if (depth > kMaxValueDepth) fail("a value nests too deep for JSON");
    if (out.size() > limit_) fail("JSON text is larger than " + std::to_string(limit_) + " bytes");
    switch (value.type) {
      case Type::kNone: out.append("null"); break;
      case Type::kBool: out.append(value.boolean ? "true" : "false"); break;
      case Type::kInt: out.append(std::to_string(value.integer)); break;
      case Type::kFloat: out.append(number(value.number)); break;
      case Type::kString: string(value.text()); break;
      case Type::kList:
      case Type::kTuple:
        container(value.list->items, '[', ']', depth, [&](const Value& item) { write(item, depth + 1); });
        break;
      case Type::kDict: {
        auto items = value.dict->items;
        if (style_.sort_keys) {
          std::stable_sort(items.begin(), items.end(),
                           [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
        }
        container(items, '{', '}', depth, [&](const auto& item) {
          string(key_text(item.first));
          out.append(key_separator_);
          write(item.second, depth + 1);
        });
        break;
      }
      default: fail("a value of type " + std::string(type_name(value)) + " cannot be written as JSON");
    }
  }

  std::string out;

 private:
  template <typename Items, typename Write>
  void container(const Items& items, char open, char close, int depth, Write&& write_item) {
    out.push_back(open);
    bool first = true;
    for (const auto& item : items) {
      if (!first) out.append(item_separator_);
      first = false;
      if (pretty_) line(depth + 1);
      write_item(item);
    }
    if (pretty_ && !items.empty()) line(depth);
    out.push_back(close);
  }

  void line(int depth) {
    out.push_back('\n');
    for (int i = 0; i < depth; ++i) out.append(unit_);
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  static std::string key_text(const Value& key) {
    switch (key.type) {
      case Type::kString: return std::string(key.text());
      case Type::kNone: return "null";
      case Type::kBool: return key.boolean ? "true" : "false";
      case Type::kInt: return std::to_string(key.integer);
      case Type::kFloat: return number(key.number);
      default: fail("a key of type " + std::string(type_name(key)) + " cannot be written as JSON");
    }
  }

  void escape(char32_t unit) {
    out.append("\\u");
    for (int shift = 12; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[(unit >> shift) & 15]);
  }

  void string(std::string_view text) {
    out.push_back('"');
    for (std::size_t at = 0; at < text.size();) {
      const auto next = unicode::decode(text, at);
      switch (next.code) {
        case '"': out.append("\\\""); break;
        case '\\': out.append("\\\\"); break;
        case '\n': out.append("\\n"); break;
        case '\r': out.append("\\r"); break;
        case '\t': out.append("\\t"); break;
        case '\b': out.append("\\b"); break;
        case '\f': out.append("\\f"); break;
        default:
          if (next.code < 0x20 || (style_.ascii && next.code > 0x7E && next.code < 0x10000)) {
            escape(next.code);
          } else if (style_.ascii && next.code >= 0x10000) {
            escape(0xD800 + ((next.code - 0x10000) >> 10));
            escape(0xDC00 + ((next.code - 0x10000) & 0x3FF));
          } else {
            out.append(text.substr(at, next.length));
          }
      }
      at += next.length;
    }
    out.push_back('"');
  }

  const JsonStyle& style_;
  std::size_t limit_;
  bool pretty_ = false;
  std::string unit_, item_separator_, key_separator_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, std::size_t limit) {
  JsonWriter writer(style, limit);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace fovea::jinja
