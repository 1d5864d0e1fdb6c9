// Implementation of unicode.h on utf8proc. Fast paths for ASCII and for scripts that are in normal form anyway.
#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>

namespace fovea::unicode {

Decoded decode(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::uint32_t length = lead_length(text[at]);
  if (at + length > text.size()) return {kReplacement, 1};
  if (length == 2) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (length == 3) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

void append(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

Validity validate(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    // Allowed range of the second byte; it excludes overlong forms, surrogates and code points above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    std::size_t length = 0;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return {at, 1, false};
    }
    for (std::size_t i = 1; i < length; ++i) {
      if (at + i >= text.size()) return {at, i, true};
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if (byte < low || byte > high) return {at, i, false};
      low = 0x80;
      high = 0xBF;
    }
    at += length;
  }
  return {at, 0, false};
}

bool is_valid(std::string_view text) { return validate(text).valid == text.size(); }

void append_lossy(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const Validity found = validate(text);
    out.append(text.substr(0, found.valid));
    if (found.bad != 0) out.append(kReplacementUtf8);
    text.remove_prefix(found.valid + found.bad);
  }
}

bool is_whitespace(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  if (code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_numeric(char32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
           (code >= 123 && code <= 126);
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t code) {
  if (code < 0x80) {
    return (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || code == '_';
  }
  if (code == 0x200C || code == 0x200D) return true;  // Join_Control
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);  // Other_Alphabetic symbols
  }
}

void append_lower(std::string& out, char32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
  } else if (code == 0x130) {  // the one character whose full lower case is longer than its simple one
    out.append("i\xCC\x87");
  } else {
    append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

namespace {
// True if the text holds only characters that every NFC text may hold anywhere: below U+0300, and the main block of CJK
// ideographs. Most of the world's text takes this path.
bool surely_nfc(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Decoded next = decode(text, at);
    if (next.code >= 0x300 && !(next.code >= 0x4E00 && next.code <= 0x9FFF)) return false;
    at += next.length;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}
}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text) || (form == NormalForm::kNfc && surely_nfc(text))) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(options));
  std::string out(text);
  if (length >= 0) out.assign(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
  std::free(mapped);
  return out;
}

const ByteChars& byte_chars() {
  static const ByteChars table = [] {
    ByteChars made{};
    made.byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
      std::string utf8;
      append(utf8, code);
      made.utf8[byte] = {utf8[0], utf8.size() > 1 ? utf8[1] : '\0'};
      made.length[byte] = static_cast<std::uint8_t>(utf8.size());
      made.byte_of[code] = static_cast<std::int16_t>(byte);
    }
    return made;
  }();
  return table;
}

bool append_bytes_of_chars(std::string& out, std::string_view text) {
  const ByteChars& table = byte_chars();
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < text.size();) {
    const Decoded next = decode(text, at);
    const int byte = next.code < table.byte_of.size() ? table.byte_of[next.code] : -1;
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    at += next.length;
  }
  return true;
}

}  // namespace fovea::unicode
