#include "server/openai/custom_input.h"

#include <cstdlib>

#include "base/json.h"
#include "server/openai/json_members.h"

namespace fovea::server {
namespace {

void append_utf8(std::uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xC0 | (code >> 6));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *out += static_cast<char>(0xE0 | (code >> 12));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | (code >> 18));
    *out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

}  // namespace

std::string CustomInput::append(std::string_view arguments) {
  static constexpr std::string_view kHead = "{\"input\":\"";
  std::string out;
  for (const char c : arguments) {
    if (where_ == Where::kText) {
      text_step(c, &out);
      continue;
    }
    if (where_ == Where::kAfter) break;
    raw_ += c;
    if (where_ == Where::kOther) continue;
    std::string head;  // without the whitespace that JSON allows there
    for (const char seen : raw_) {
      if (seen != ' ' && seen != '\n' && seen != '\t' && seen != '\r') head += seen;
    }
    if (head == kHead) {
      where_ = Where::kText;
      raw_.clear();
    } else if (!kHead.starts_with(head)) {
      where_ = Where::kOther;
    }
  }
  return out;
}

void CustomInput::text_step(char c, std::string* out) {
  if (!escape_.empty()) {
    escape_ += c;
    if (escape_[1] != 'u' || escape_.size() == 6) end_escape(out);
    return;
  }
  if (c == '\\') {
    escape_ = c;
    return;
  }
  if (first_ != 0) append_utf8(0xFFFD, out);
  first_ = 0;
  if (c == '"') {
    where_ = Where::kAfter;
  } else {
    *out += c;
  }
}

void CustomInput::end_escape(std::string* out) {
  const std::string escape = std::exchange(escape_, {});
  static constexpr std::string_view kFrom = "nrtbf", kTo = "\n\r\t\b\f";
  if (escape[1] != 'u') {
    if (first_ != 0) append_utf8(0xFFFD, out);
    first_ = 0;
    const std::size_t at = kFrom.find(escape[1]);
    *out += at == std::string_view::npos ? escape[1] : kTo[at];
    return;
  }
  const auto code = static_cast<std::uint32_t>(std::strtoul(escape.c_str() + 2, nullptr, 16));
  const bool second = code >= 0xDC00 && code < 0xE000;
  if (first_ != 0 && second) {
    append_utf8(0x10000 + ((first_ - 0xD800) << 10) + (code - 0xDC00), out);
    first_ = 0;
    return;
  }
  if (first_ != 0) append_utf8(0xFFFD, out);
  first_ = 0;
  if (code >= 0xD800 && code < 0xDC00) {
    first_ = code;
  } else {
    append_utf8(second ? 0xFFFD : code, out);
  }
}

std::string CustomInput::finish() {
  if (where_ == Where::kText || where_ == Where::kAfter || raw_.empty()) return {};
  const Json value = Json::parse(raw_, nullptr, /*allow_exceptions=*/false);
  if (value.is_object() && value.contains("input") && value["input"].is_string()) return text_of(value, "input");
  return value.is_object() && value.empty() ? std::string() : raw_;
}

}  // namespace fovea::server
