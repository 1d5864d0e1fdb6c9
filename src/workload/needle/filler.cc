// Sentences, word salad, junk and passages: what stands between the facts.
#include "workload/needle/filler.h"

#include <algorithm>
#include <array>

#include "workload/needle/phrase.h"

namespace fovea {

namespace {

void append_utf8(std::string& text, std::uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xC0 | (point >> 6));
    text += static_cast<char>(0x80 | (point & 63));
  } else {
    text += static_cast<char>(0xE0 | (point >> 12));
    text += static_cast<char>(0x80 | ((point >> 6) & 63));
    text += static_cast<char>(0x80 | (point & 63));
  }
}

struct Block {
  std::uint32_t first, last;
};
// Latin with accents, Greek, Cyrillic, Hebrew, kana, CJK, arrows and signs: enough that no byte of UTF-8 is a stranger.
constexpr std::array<Block, 8> kBlocks = {{{0xE0, 0x17F},
                                           {0x3B1, 0x3C9},
                                           {0x410, 0x44F},
                                           {0x5D0, 0x5EA},
                                           {0x3042, 0x3093},
                                           {0x4E00, 0x4FFF},
                                           {0x2190, 0x21FF},
                                           {0x2010, 0x2027}}};

constexpr std::string_view kPunctuation = "()[]{}<>+-*/=,;:.!?#&|_\"'%$@^~";

}  // namespace

NeedleFillerSource::NeedleFillerSource(NeedleRandom& random, const NeedleLexicon& words, NeedleFiller kind,
                                       std::string_view text)
    : random_(random), words_(words), kind_(kind), text_(text) {
  prose_at_ = random_.below(words_.prose.size());
  if (!text_.empty()) text_at_ = random_.below(text_.size());
  if (kind_ == NeedleFiller::kJunk || kind_ == NeedleFiller::kMixed) {
    alphabet_.resize(random_.between(12, 400));
    for (std::string& symbol : alphabet_) symbol = junk_symbol();
  }
}

std::string NeedleFillerSource::expand(std::string_view pattern, std::string_view key, std::string_view subject) {
  std::string text;
  text.reserve(pattern.size() + 48);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{' || i + 2 >= pattern.size() || pattern[i + 2] != '}') {
      text += pattern[i];
      continue;
    }
    switch (pattern[i + 1]) {
      case 'a': text += random_.pick(words_.adjectives); break;
      case 'n': text += random_.pick(words_.nouns); break;
      case 'p': text += random_.pick(words_.first_names); break;
      case 'l': text += random_.pick(words_.last_names); break;
      case 't': text += random_.pick(words_.towns); break;
      case 'c': text += random_.pick(words_.colours); break;
      case 'd': text += std::to_string(random_.between(2, 40)); break;
      case 'k': text += key; break;
      case 's': text += subject; break;
      default: text += pattern.substr(i, 3); break;
    }
    i += 2;
  }
  return capitalized(std::move(text));
}

std::string NeedleFillerSource::salad() {
  std::string text;
  for (std::size_t i = random_.between(4, 16); i > 0; --i) {
    if (!text.empty()) text += random_.permille(80) ? ", " : " ";
    switch (random_.below(8)) {
      case 0:
      case 1: text += random_.pick(words_.adjectives); break;
      case 2:
      case 3: text += random_.pick(words_.nouns); break;
      case 4: text += random_.pick(words_.first_names); break;
      case 5: text += random_.pick(words_.attributes).name; break;
      case 6: text += made_up_word(random_); break;
      default: {
        static constexpr std::array<std::string_view, 12> kSmall = {"the", "of", "is", "a",   "and", "in",
                                                                    "to",  "is", "of", "the", "was", "not"};
        text += random_.pick(kSmall);
      }
    }
  }
  return text + (random_.permille(850) ? "." : "");
}

std::string NeedleFillerSource::junk_symbol() {
  std::string text;
  switch (random_.below(8)) {
    case 0: return made_up_word(random_);
    case 1:  // statements, not one sum: the order of the draws must not depend on the compiler
      text = made_up_word(random_) + "_";
      text += made_up_word(random_);
      return text;
    case 2:
      text = made_up_word(random_);
      text += capitalized(made_up_word(random_));
      if (random_.below(2) == 0) text += "()";
      return text;
    case 3:
      for (std::size_t i = random_.between(2, 8); i > 0; --i) text += "0123456789abcdef"[random_.below(16)];
      return text;
    case 4:
      for (std::size_t i = random_.between(1, 6); i > 0; --i) text += static_cast<char>('0' + random_.below(10));
      return text;
    case 5:
      for (std::size_t i = random_.between(1, 3); i > 0; --i) text += kPunctuation[random_.below(kPunctuation.size())];
      return text;
    case 6: {
      const Block block = random_.pick(kBlocks);
      for (std::size_t i = random_.between(1, 6); i > 0; --i)
        append_utf8(text, static_cast<std::uint32_t>(random_.between(block.first, block.last)));
      return text;
    }
    default:
      for (std::size_t i = random_.between(1, 7); i > 0; --i) text += static_cast<char>('a' + random_.below(26));
      return random_.below(3) == 0 ? capitalized(text) : text;
  }
}

std::string NeedleFillerSource::junk() {
  if (!recent_.empty() && random_.permille(120)) return random_.pick(recent_);
  std::string text;
  const std::string_view gap = random_.permille(850) ? " " : "";
  for (std::size_t i = random_.between(3, 20); i > 0; --i) {
    // The smaller of two ranks: frequent symbols stay frequent, as in any text.
    text += alphabet_[std::min(random_.below(alphabet_.size()), random_.below(alphabet_.size()))];
    if (i > 1) text += gap;
  }
  if (recent_.size() < 32) {
    recent_.push_back(text);
  } else {
    recent_[random_.below(recent_.size())] = text;
  }
  return text;
}

// The next line of the text, or the next sentences of a long one. Cuts only at ASCII, so characters stay whole.
std::string NeedleFillerSource::passage() {
  std::string_view line;
  while (line.empty()) {
    if (text_at_ >= text_.size()) text_at_ = 0;
    const std::size_t begin = text_at_;
    std::size_t end = text_.find('\n', begin);
    if (end == std::string_view::npos) end = text_.size();
    if (end - begin > 240) {
      const std::size_t stop = text_.find(". ", begin + 120);
      const std::size_t blank = text_.find(' ', begin + 240);
      if (stop < std::min(begin + 240, end)) {
        end = stop + 1;
      } else if (blank < end) {
        end = blank;
      }
    }
    line = text_.substr(begin, end - begin);
    text_at_ = end + 1;
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() && text_.find_first_not_of(" \r\n") == std::string_view::npos) return ".";
  }
  // A passage may start inside a character where the offset was drawn at random.
  while (!line.empty() && (static_cast<unsigned char>(line.front()) & 0xC0) == 0x80) line.remove_prefix(1);
  return std::string(line);
}

std::string NeedleFillerSource::next_unit(NeedleFiller kind) {
  switch (kind) {
    case NeedleFiller::kTemplates: return expand(random_.pick(words_.templates));
    case NeedleFiller::kSalad: return salad();
    case NeedleFiller::kJunk: return junk();
    case NeedleFiller::kText:
      if (!text_.empty()) return passage();
      break;
    default: break;
  }
  prose_at_ = (prose_at_ + 1) % words_.prose.size();
  return expand(words_.prose[prose_at_]);
}

std::vector<std::string> NeedleFillerSource::paragraph() {
  NeedleFiller kind = kind_;
  if (kind_ == NeedleFiller::kMixed) {
    static constexpr std::array<int, 5> kShare = {25, 25, 12, 13, 25};
    kind = static_cast<NeedleFiller>(random_.weighted(kShare));
  }
  // Prose is met in another place each time, so that no two paragraphs of a long document are alike.
  prose_at_ = random_.below(words_.prose.size());
  std::vector<std::string> units(random_.between(1, 8));
  for (std::string& unit : units) unit = next_unit(kind);
  return units;
}

}  // namespace fovea
