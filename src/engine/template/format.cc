// String formatting of templates: the operator %, the filter format, and str.format, for the directives that templates
// use: %s %r %d %i %f %x %X %o %e %g %c %% with flags, width and precision; {} {0} {name} with fill, alignment, sign,
// width, comma, precision and the types s d f x X o b e g %.
#include <cmath>
#include <cstdio>

#include "engine/template/interpreter.h"
#include "engine/template/text.h"

namespace fovea::jinja {
namespace {

constexpr int kMaxWidth = 1 << 16;
constexpr int kMaxPrecision = 200;

struct Style {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool comma = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

int read_number(std::string_view text, std::size_t& at, int most) {
  int value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = value * 10 + (text[at++] - '0');
    if (value > most) fail("a format's width or precision is larger than " + std::to_string(most));
  }
  return value;
}

std::string pad(const Style& style, const std::string& sign, std::string body, char default_align) {
  const char align = style.align != '\0' ? style.align : default_align;
  const auto size = static_cast<int>(code_points(sign) + code_points(body));
  std::string filling;
  for (int i = size; i < style.width; ++i) filling += style.fill;
  if (align == '=') return sign + filling + body;
  if (align == '<') return sign + body + filling;
  if (align == '^') {
    std::string left;
    const int missing = std::max(style.width - size, 0);
    for (int i = 0; i < missing / 2; ++i) left += style.fill;
    for (int i = missing / 2; i < missing; ++i) body += style.fill;
    return left + sign + body;
  }
  return filling + sign + body;
}

std::string with_commas(const std::string& digits) {
  const std::size_t point = std::min(digits.find('.'), digits.size());
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && i < point && (point - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string format_number(const Value& value, Style style) {
  const bool integral = value.is_integral();
  char type = style.type;
  if (type == '\0') type = integral ? 'd' : 'r';
  bool negative;
  std::string digits;
  if (std::string_view("dixXob").find(type) != std::string_view::npos) {
    if (!integral) fail(std::string("format '") + type + "' needs an integer, got " + std::string(type_name(value)));
    const std::int64_t number = value.as_int();
    negative = number < 0;
    std::uint64_t magnitude = negative ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    do {
      digits.insert(digits.begin(), (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base]);
      magnitude /= base;
    } while (magnitude != 0);
    if (style.alternate && base != 10)
      digits.insert(0, std::string("0") + (type == 'X' ? 'X' : base == 16 ? 'x' : base == 8 ? 'o' : 'b'));
  } else {
    double number = value.as_double();
    negative = std::signbit(number);
    number = std::fabs(number);
    if (type == 'r') {
      digits = float_text(number);
    } else {
      const bool percent = type == '%';
      const char directive[] = {'%', '.', '*', percent ? 'f' : type, '\0'};
      char buffer[1024];
      std::snprintf(buffer, sizeof buffer, directive, style.precision < 0 ? 6 : style.precision,
                    percent ? number * 100 : number);
      digits = buffer;
      if (percent) digits.push_back('%');
    }
  }
  if (style.comma) digits = with_commas(digits);
  const std::string sign = negative ? "-" : style.sign == '+' ? "+" : style.sign == ' ' ? " " : "";
  return pad(style, sign, digits, '>');
}

std::string cut(std::string text, int precision) {
  if (precision >= 0) text.resize(offset_of(text, static_cast<std::size_t>(precision)));
  return text;
}

std::string repr(Interpreter& in, const Value& value) {
  std::string out;
  append_repr(out, value, in.limits().output_bytes);
  return out;
}

// Flags, width, precision and type behind a '%', from `at` on.
Style percent_style(std::string_view format, std::size_t& at) {
  Style style;
  for (; at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos; ++at) {
    if (format[at] == '-') style.align = '<';
    if (format[at] == '0' && style.align == '\0') {
      style.align = '=';
      style.fill = "0";
    }
    if (format[at] == '+' || (format[at] == ' ' && style.sign != '+')) style.sign = format[at];
    if (format[at] == '#') style.alternate = true;
  }
  if (style.align == '<') style.fill = " ";
  style.width = read_number(format, at, kMaxWidth);
  if (at < format.size() && format[at] == '.') {
    ++at;
    style.precision = read_number(format, at, kMaxPrecision);
  }
  if (at >= format.size()) fail("a format ends inside a directive");
  style.type = format[at++];
  return style;
}

void append_percent(Interpreter& in, const Value& value, Style& style, std::string& out) {
  switch (style.type) {
    case 's':
    case 'r':
      out.append(pad(style, "", cut(style.type == 's' ? in.text(value) : repr(in, value), style.precision), '>'));
      break;
    case 'c': out.append(pad(style, "", in.text(value), '>')); break;
    case 'd':
    case 'i':
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'g': {
      if (!value.is_number())
        fail(std::string("format '%") + style.type + "' needs a number, got " + std::string(type_name(value)));
      Value number = value;
      if ((style.type == 'd' || style.type == 'i') && number.type == Type::kFloat) {
        if (!(std::fabs(number.number) < 9.2e18)) fail("an integer does not fit 64 bits");
        number = Value::of(static_cast<std::int64_t>(number.number));
      }
      out.append(format_number(number, style));
      break;
    }
    default: fail(std::string("format directive '%") + style.type + "' is not supported");
  }
}

// What stands behind the ':' of a field in braces.
Style brace_style(std::string_view spec) {
  Style style;
  std::size_t i = 0;
  const auto aligns = [](char align) { return align == '<' || align == '>' || align == '^' || align == '='; };
  const std::size_t first = spec.empty() ? 0 : offset_of(spec, 1);
  if (first < spec.size() && aligns(spec[first])) {
    style.fill = spec.substr(0, first);
    style.align = spec[first];
    i = first + 1;
  } else if (!spec.empty() && aligns(spec[0])) {
    style.align = spec[0];
    i = 1;
  }
  if (i < spec.size() && (spec[i] == '+' || spec[i] == '-' || spec[i] == ' ')) style.sign = spec[i++];
  if (i < spec.size() && spec[i] == '#') {
    style.alternate = true;
    ++i;
  }
  if (i < spec.size() && spec[i] == '0') {
    if (style.align == '\0') {
      style.align = '=';
      style.fill = "0";
    }
    ++i;
  }
  style.width = read_number(spec, i, kMaxWidth);
  if (i < spec.size() && spec[i] == ',') {
    style.comma = true;
    ++i;
  }
  if (i < spec.size() && spec[i] == '.') {
    ++i;
    style.precision = read_number(spec, i, kMaxPrecision);
  }
  if (i < spec.size()) style.type = spec[i++];
  if (i < spec.size() ||
      (style.type != '\0' && std::string_view("sdfFxXobeg%").find(style.type) == std::string_view::npos)) {
    fail("format '" + std::string(spec) + "' is not supported");
  }
  return style;
}

}  // namespace

std::string format_percent(Interpreter& in, std::string_view format, const Arguments& arguments) {
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      out.push_back(format[at++]);
      continue;
    }
    if (++at >= format.size()) fail("a format ends behind '%'");
    if (format[at] == '%') {
      out.push_back(format[at++]);
      continue;
    }
    const Value* value = nullptr;
    if (format[at] == '(') {
      const std::size_t close = format.find(')', at);
      if (close == std::string_view::npos) fail("a format's '%(' is not closed");
      const std::string_view name = format.substr(at + 1, close - at - 1);
      value = arguments.find(SIZE_MAX, name);
      if (value == nullptr && arguments.values.size() == 1 && arguments.values[0].type == Type::kDict) {
        value = arguments.values[0].dict->find(name);
      }
      if (value == nullptr) fail("a format names '" + std::string(name) + "', which is not given");
      at = close + 1;
      used = arguments.values.size();
    }
    Style style = percent_style(format, at);
    if (value == nullptr) {
      if (used >= arguments.values.size()) fail("a format has more directives than arguments");
      value = &arguments.values[used++];
    }
    append_percent(in, *value, style, out);
    if (out.size() > in.limits().output_bytes) fail("a format makes more text than the template may print");
  }
  if (used < arguments.values.size() && !(arguments.values.size() == 1 && arguments.values[0].type == Type::kDict)) {
    fail("a format has fewer directives than arguments");
  }
  in.step(out.size() / 16);
  return out;
}

std::string format_braces(Interpreter& in, std::string_view format, const Arguments& arguments) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size();) {
    const char c = format[at];
    if (c != '{' && c != '}') {
      out.push_back(c);
      ++at;
      continue;
    }
    if (at + 1 < format.size() && format[at + 1] == c) {
      out.push_back(c);
      at += 2;
      continue;
    }
    const std::size_t close = format.find('}', at);
    if (c == '}' || close == std::string_view::npos) fail(std::string("a format has a single '") + c + "'");
    std::string_view field = format.substr(at + 1, close - at - 1);
    at = close + 1;
    std::string_view spec;
    const std::size_t colon = field.find(':');
    if (colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    if (field.find_first_of("{.[") != std::string_view::npos || spec.find('{') != std::string_view::npos) {
      fail("format fields with '.', '[' or '{' inside are not supported");
    }
    const bool digits =
        !field.empty() && field.find_first_not_of("0123456789") == std::string_view::npos && field.size() < 6;
    const std::size_t index = field.empty() ? next++
                              : digits      ? static_cast<std::size_t>(std::stoi(std::string(field)))
                                            : SIZE_MAX;
    const Value* value = arguments.find(index, field.empty() || digits ? std::string_view("\x01") : field);
    if (value == nullptr) fail("a format names '" + std::string(field) + "', which is not given");
    Style style = brace_style(spec);
    if (conversion != '\0' && conversion != 's' && conversion != 'r')
      fail("only the conversions !s and !r are supported");
    if (conversion == '\0' && value->is_number() && style.type != 's' &&
        !(spec.empty() && value->type == Type::kBool)) {
      if (style.type == '\0' && style.precision >= 0) style.type = 'g';
      out.append(format_number(*value, style));
    } else {
      if (style.type != '\0' && style.type != 's')
        fail("format '" + std::string(spec) + "' needs a number, got " + std::string(type_name(*value)));
      out.append(pad(style, "", cut(conversion == 'r' ? repr(in, *value) : in.text(*value), style.precision), '<'));
    }
    if (out.size() > in.limits().output_bytes) fail("a format makes more text than the template may print");
  }
  in.step(out.size() / 16);
  return out;
}

}  // namespace fovea::jinja
