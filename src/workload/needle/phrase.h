// How facts, questions and answers are worded: the same phrasings in training and evaluation, with words of either
// split. Called by document.cc.
#pragma once

#include <string>

#include "workload/needle/lexicon.h"
#include "workload/needle/random.h"

namespace fovea {

// What a fact is about: attribute and subject together are unique in a document.
struct NeedleKey {
  std::string attribute;
  NeedleAttributeKind kind = NeedleAttributeKind::kWord;
  std::string subject;  // "the amber lantern", "Marisol Vane"
  std::string of() const { return "the " + attribute + " of " + subject; }
  std::string possessive() const { return subject + "'s " + attribute; }
};

std::string capitalized(std::string text);

// A sentence that states the fact. `variety` (per mille): how often it is worded otherwise than "The A of S is V.".
std::string needle_fact(NeedleRandom& random, const NeedleKey& key, const std::string& value, std::uint32_t variety);

struct NeedleWording {
  std::string question;
  std::string stem;  // the answer without its value: "The code of the amber lantern is "
  bool canonical = true;
};

// A question about the key, and the sentence its answer has to be: the key as the question words it, "is", the value.
NeedleWording needle_question(NeedleRandom& random, const NeedleKey& key, std::uint32_t variety);

// A word that is in no list: syllables with letters of several languages' frequency. 3 to 10 letters.
std::string made_up_word(NeedleRandom& random);

// A value of some type; `words` supplies the split's lists. Never contains a line end or a final full stop.
std::string needle_value(NeedleRandom& random, const NeedleLexicon& words, NeedleAttributeKind kind);

}  // namespace fovea
