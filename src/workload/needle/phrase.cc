// Wording of facts, questions, answers and values.
#include "workload/needle/phrase.h"

#include <array>
#include <initializer_list>
#include <string_view>

namespace fovea {

namespace {

constexpr std::array<std::string_view, 14> kOpenings = {
    "Remember that ",   "Note that ",        "By the way, ", "It is known that ",
    "Please note: ",    "For the record, ",  "- ",           "* ",
    "Incidentally, ",   "As agreed, ",       "Note: ",       "Of course, ",
    "One more thing: ", "Keep in mind that "};

constexpr std::array<std::string_view, 5> kVerbs = {" was ", " equals ", " is now ", " will be ", " = "};

// {k} is the key, {K} the key with a capital letter.
constexpr std::array<std::string_view, 17> kQuestions = {
    "What's {k}?",
    "Tell me {k}.",
    "Give me {k}.",
    "{K}?",
    "Do you know {k}?",
    "Which is {k}?",
    "I need {k}.",
    "Can you tell me {k}?",
    "According to the text, what is {k}?",
    "Please state {k}.",
    "What was {k}?",
    "In the document above, what is {k}?",
    "Find {k}.",
    "what is {k}",
    "Question: What is {k}?",
    "And {k}?",
    "What does the text say about {k}?",
};

// Operands of + may be evaluated in any order; a braced list is evaluated from left to right, so that the random draws
// in it come in one order under every compiler.
std::string concat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view part : parts) text += part;
  return text;
}

std::string digits(NeedleRandom& random, std::size_t count) {
  std::string text(1, static_cast<char>('1' + random.below(9)));
  while (text.size() < count) text += static_cast<char>('0' + random.below(10));
  return text;
}

std::string fill(std::string_view pattern, const std::string& key) {
  std::string text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.substr(i, 3) == "{k}") {
      text += key;
      i += 2;
    } else if (pattern.substr(i, 3) == "{K}") {
      text += capitalized(key);
      i += 2;
    } else {
      text += pattern[i];
    }
  }
  return text;
}

std::string mixed_code(NeedleRandom& random) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  static constexpr std::string_view kAny = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789";
  std::string text;
  switch (random.below(3)) {
    case 0:  // "QX-4821"
      for (std::size_t i = random.between(1, 3); i > 0; --i) text += kLetters[random.below(kLetters.size())];
      return text + "-" + digits(random, random.between(2, 4));
    case 1:  // "b7Kp2x"
      for (std::size_t i = random.between(4, 8); i > 0; --i) text += kAny[random.below(kAny.size())];
      return text;
    default:  // "X7-kQ9/zz"
      for (std::size_t part = random.between(2, 3); part > 0; --part) {
        for (std::size_t i = random.between(2, 3); i > 0; --i) text += kAny[random.below(kAny.size())];
        if (part > 1) text += "-/_:"[random.below(4)];
      }
      return text;
  }
}

std::string number_value(NeedleRandom& random) {
  static constexpr std::array<std::string_view, 8> kUnits = {"kg",   "km",    "euros", "litres",
                                                             "days", "years", "%",     "volts"};
  switch (random.weighted(std::array<int, 5>{70, 8, 8, 8, 6})) {
    case 0: return digits(random, random.between(4, 6));
    case 1: return digits(random, random.between(7, 10));
    case 2: return concat({digits(random, random.between(1, 3)), " ", random.pick(kUnits)});
    case 3: return concat({digits(random, random.between(1, 3)), ".", digits(random, random.between(1, 2))});
    default: return concat({digits(random, 2), ":", digits(random, 2)});
  }
}

std::string place_value(NeedleRandom& random, const NeedleLexicon& words) {
  static constexpr std::array<std::string_view, 6> kWhere = {"under", "behind", "near", "inside", "above", "next to"};
  switch (random.below(6)) {
    case 0: return std::string(random.pick(words.towns));
    case 1: return concat({"the ", random.pick(words.adjectives), " ", random.pick(words.nouns)});
    case 2: return concat({random.pick(kWhere), " the ", random.pick(words.adjectives), " ", random.pick(words.nouns)});
    case 3: return concat({random.pick(kWhere), " the ", random.pick(words.nouns)});
    case 4: {
      std::string address = concat({digits(random, random.between(1, 3)), random.below(3) == 0 ? "b " : " ",
                                    random.pick(words.last_names), " Street"});
      if (random.below(2) == 0) address += concat({", ", random.pick(words.towns)});
      return address;
    }
    default: return capitalized(made_up_word(random));
  }
}

std::string word_value(NeedleRandom& random, const NeedleLexicon& words) {
  switch (random.weighted(std::array<int, 6>{22, 22, 14, 24, 10, 8})) {
    case 0: return concat({random.pick(words.adjectives), " ", random.pick(words.nouns)});
    case 1: return made_up_word(random);
    case 2: return std::string(random.pick(words.nouns));
    case 3: return std::string(random.pick(words.colours));
    case 4: return concat({random.pick(words.adjectives), " ", made_up_word(random), " ", random.pick(words.nouns)});
    default: return mixed_code(random);
  }
}

}  // namespace

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string made_up_word(NeedleRandom& random) {
  static constexpr std::array<std::string_view, 34> kOnsets = {
      "b", "br", "c",  "ch", "cl", "d", "dr", "f",  "fl", "g",  "gr", "h",  "j",  "k", "kr", "l", "m",
      "n", "p",  "ph", "pr", "qu", "r", "s",  "sh", "sk", "st", "t",  "th", "tr", "v", "w",  "y", "z"};
  static constexpr std::array<std::string_view, 12> kVowels = {"a",  "e",  "i",  "o", "u", "ai",
                                                               "ea", "ou", "ee", "o", "a", "e"};
  static constexpr std::array<std::string_view, 18> kCodas = {"",  "",   "",   "n",  "r",  "l",  "s",  "t",  "m",
                                                              "x", "ck", "nd", "rt", "st", "ng", "lm", "sk", "p"};
  std::string word;
  for (std::size_t syllables = random.between(1, 3); syllables > 0; --syllables) {
    word += random.pick(kOnsets);
    word += random.pick(kVowels);
    word += random.pick(kCodas);
  }
  if (word.size() < 3) word += random.pick(kOnsets);
  return word;
}

std::string needle_value(NeedleRandom& random, const NeedleLexicon& words, NeedleAttributeKind kind) {
  // Four in five values suit the attribute; the rest are of any type, so that the type never stands for the fact.
  const std::size_t type = random.permille(800) ? static_cast<std::size_t>(kind) : random.below(4);
  switch (static_cast<NeedleAttributeKind>(type)) {
    case NeedleAttributeKind::kNumber: return number_value(random);
    case NeedleAttributeKind::kPerson:
      switch (random.below(4)) {
        case 0: return concat({random.pick(words.first_names), " ", random.pick(words.last_names)});
        case 1: return capitalized(made_up_word(random));
        case 2: return concat({random.pick(words.first_names), " ", capitalized(made_up_word(random))});
        default: return std::string(random.pick(words.first_names));
      }
    case NeedleAttributeKind::kPlace: return place_value(random, words);
    default: return word_value(random, words);
  }
}

std::string needle_fact(NeedleRandom& random, const NeedleKey& key, const std::string& value, std::uint32_t variety) {
  const std::string opening = random.permille(500) ? std::string(random.pick(kOpenings)) : std::string();
  const auto sentence = [&](const std::string& text) {
    const bool capital = opening.empty() || opening == "- " || opening == "* ";
    return opening + (capital ? capitalized(text) : text) + ".";
  };
  if (!random.permille(variety)) return sentence(key.of() + " is " + value);
  switch (random.weighted(std::array<int, 7>{36, 12, 8, 14, 14, 8, 8})) {
    case 0: return sentence(key.possessive() + " is " + value);
    case 1: return sentence(key.subject + " has the " + key.attribute + " " + value);
    case 2: return sentence("for " + key.subject + ", the " + key.attribute + " is " + value);
    case 3: return capitalized(key.attribute) + " of " + key.subject + ": " + value;
    case 4: return sentence(key.of() + std::string(random.pick(kVerbs)) + value);
    case 5: return capitalized(key.possessive()) + ": " + value;
    default: return sentence(key.of() + " is " + (random.below(2) == 0 ? "**" + value + "**" : "`" + value + "`"));
  }
}

NeedleWording needle_question(NeedleRandom& random, const NeedleKey& key, std::uint32_t variety) {
  NeedleWording wording;
  wording.canonical = !random.permille(variety);
  const bool possessive = !wording.canonical && random.permille(350);
  const std::string name = possessive ? key.possessive() : key.of();
  wording.stem = capitalized(name) + " is ";
  const bool person = key.kind == NeedleAttributeKind::kPerson;
  const bool place = key.kind == NeedleAttributeKind::kPlace;
  if ((person || place) && random.permille(600)) {
    wording.question = (person ? "Who is " : "Where is ") + name + "?";
  } else if (wording.canonical || (possessive && random.permille(500))) {
    wording.question = "What is " + name + "?";
  } else {
    wording.question = fill(random.pick(kQuestions), name);
  }
  return wording;
}

}  // namespace fovea
