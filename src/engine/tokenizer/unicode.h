// UTF-8 and Unicode helpers of the tokenizer: decoding, repair of invalid input, character classes, normal forms and
// the byte-to-character table of byte-level BPE. Called by every other file of this folder.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fovea::unicode {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// One decoded character: its code point and its length in bytes; length 0 at the end of the text.
struct Decoded {
  char32_t code = 0;
  std::uint32_t length = 0;
};

// Decodes the character that starts at `text[at]`. The text must be valid UTF-8 (see repair).
Decoded decode(std::string_view text, std::size_t at);

// Length in bytes of the character that this lead byte starts, in valid UTF-8.
inline std::uint32_t lead_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append(std::string& out, char32_t code);

// Validates from the start of `text`: how many leading bytes are whole valid characters, how long the first bad
// sequence after them is (a maximal invalid prefix, as Unicode section 3.9 counts), and whether that sequence would be
// valid if more bytes came.
struct Validity {
  std::size_t valid = 0;
  std::size_t bad = 0;
  bool incomplete = false;
};
Validity validate(std::string_view text);

// True if the text is valid UTF-8.
bool is_valid(std::string_view text);

// Appends `text` to `out` with every bad sequence replaced by U+FFFD, one for each maximal invalid prefix.
void append_lossy(std::string& out, std::string_view text);

bool is_whitespace(char32_t code);   // property White_Space
bool is_numeric(char32_t code);      // categories Nd, Nl, No
bool is_punctuation(char32_t code);  // categories P*, and the ASCII symbols
bool is_mark(char32_t code);         // categories Mn, Mc, Me
bool is_word(char32_t code);         // what \w matches: letters, marks, decimal digits, connectors
void append_lower(std::string& out, char32_t code);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Text in the given normal form. Never fails on valid UTF-8.
std::string normalize(std::string_view text, NormalForm form);

// Byte-level BPE writes every byte as one printable character: printable Latin-1 bytes as themselves, the others as
// U+0100 and up, in order (GPT-2's table).
struct ByteChars {
  std::array<std::array<char, 2>, 256> utf8;
  std::array<std::uint8_t, 256> length;
  std::array<std::int16_t, 0x144> byte_of;  // code point -> byte, -1 where there is none
};
const ByteChars& byte_chars();

// The bytes that byte-level text stands for; false (and nothing appended) if a character is not of the table.
bool append_bytes_of_chars(std::string& out, std::string_view text);

}  // namespace fovea::unicode
