// The one generator of needle documents: facts hidden among filler, with questions and the answers they must get.
// Training (tools/needle), its evaluation, `fovea eval needle`, the demo and the tests all read documents from here.
// The same spec gives the same bytes on every platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "workload/needle/lexicon.h"

namespace fovea {

enum class NeedleFiller {
  kTemplates,  // short sentences about the words that keys are made of, and mentions of keys without a value
  kProse,      // ordinary prose, and mentions
  kSalad,      // words in random order
  kJunk,   // an alphabet of the document's own: identifiers, hex, punctuation, letters of other scripts; lines repeat
  kText,   // consecutive passages of NeedleSpec::text
  kMixed,  // paragraphs of all of these
};

// Parses and prints the names "templates", "prose", "salad", "junk", "text", "mixed". False when there is no such name.
bool parse_needle_filler(std::string_view name, NeedleFiller& filler);
std::string_view needle_filler_name(NeedleFiller filler);

struct NeedleSpec {
  std::uint64_t seed = 0;
  NeedleSplit split = NeedleSplit::kEval;
  NeedleFiller filler = NeedleFiller::kProse;
  std::size_t characters = 8000;  // bytes of the document, an upper bound unless the facts alone need more
  std::uint32_t facts = 4;        // cells of one to three grids attribute x first word x second word
  std::uint32_t questions = 4;    // about different facts as long as there are any
  std::uint32_t absent = 0;       // per mille of the questions that ask for a cell that no fact fills
  std::uint32_t made_up = 250;    // per mille of key words that are in no list
  std::uint32_t own_words = 150;  // per mille of key words taken from the document's own filler and text
  std::uint32_t variety = 300;    // per mille of facts and questions worded otherwise than the plain way
  std::string_view text;          // for kText and kMixed, which use prose where it is empty; some words come from it
};

struct NeedleQuestion {
  std::string question;
  std::string answer;      // the whole sentence expected: "The code of the amber lantern is 74912."
  std::string value;       // "74912"; "unknown" where absent
  std::string fact;        // the sentence as hidden; empty where absent
  std::size_t offset = 0;  // byte of the document at which the fact starts; 0 where absent
  double depth = 0.0;      // offset / size of the document, in [0, 1); 0 where absent
  bool absent = false;
};

struct NeedleDocument {
  NeedleSpec spec;
  std::string text;
  std::vector<NeedleQuestion> questions;
};

NeedleDocument make_needle_document(const NeedleSpec& spec);

// The document of at most max_tokens tokens (by `count`) and as near to it as a few tries get, typically within 2 %.
// spec.characters is ignored and, in the returned spec, holds what was found: make_needle_document(document.spec) is
// it. Where the facts alone are longer than max_tokens, the shortest document there is comes back.
NeedleDocument fit_needle_document(NeedleSpec spec, std::size_t max_tokens,
                                   const std::function<std::size_t(std::string_view)>& count);

}  // namespace fovea
