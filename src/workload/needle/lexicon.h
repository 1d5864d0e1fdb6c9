// The words and sentences that needle documents are made of, one set for training and one for evaluation. The two sets
// share no entry (document_test.cc proves it), so a right answer in an evaluation is about words never trained on.
// Used by document.cc only; phrases of facts and questions, which both splits share, are in phrase.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

enum class NeedleSplit { kTrain, kEval };

// How an attribute's value usually looks; it also decides between "what", "who" and "where" in questions.
enum class NeedleAttributeKind { kNumber, kPerson, kPlace, kWord };

struct NeedleAttribute {
  std::string_view name;
  NeedleAttributeKind kind;
};

struct NeedleLexicon {
  std::vector<std::string_view> adjectives;
  std::vector<std::string_view> nouns;
  std::vector<std::string_view> first_names;
  std::vector<std::string_view> last_names;
  std::vector<std::string_view> colours;
  std::vector<std::string_view> towns;
  std::vector<NeedleAttribute> attributes;
  // Filler sentences. {a} adjective, {n} noun, {p} first name, {l} last name, {t} town, {c} colour, {d} small number.
  std::vector<std::string_view> prose;      // ordinary prose, in the order of a text
  std::vector<std::string_view> templates;  // short sentences about the words that keys are made of
  // Sentences that name a key but give no value. {k} "the code of the amber lantern", {s} "the amber lantern".
  std::vector<std::string_view> mentions;
};

const NeedleLexicon& needle_lexicon(NeedleSplit split);

// Building blocks of the two tables: a text of words between blanks; lines of a text; "name:kind" pairs (kind n, p, l
// or w).
std::vector<std::string_view> split_words(std::string_view text);
std::vector<std::string_view> split_lines(std::string_view text);
std::vector<NeedleAttribute> split_attributes(std::string_view text);

NeedleLexicon make_train_lexicon();  // lexicon_train.cc
NeedleLexicon make_eval_lexicon();   // lexicon_eval.cc

}  // namespace fovea
