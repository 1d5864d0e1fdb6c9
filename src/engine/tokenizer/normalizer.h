// Normalizers of tokenizer.json: what happens to the text before it is cut into pieces. Called by the Tokenizer for
// each stretch of text between added tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {

class Normalizer {
 public:
  // From the "normalizer" field; null gives one that changes nothing. Supported types: NFC, NFD, NFKC, NFKD, Lowercase,
  // Strip, StripAccents, Prepend, Replace, ByteLevel, Sequence.
  static Result<Normalizer> from_json(const nlohmann::json& spec);

  bool empty() const { return steps_.empty(); }

  // Normalizes `text` in place. `at_origin` says that its first character is the first of the user's text; it becomes
  // false if that character is removed (Metaspace's prepend_scheme "first" looks at it).
  Status apply(std::string& text, bool& at_origin) const;

 private:
  enum class Kind { kForm, kLowercase, kStrip, kStripAccents, kPrepend, kReplace, kByteLevel };
  struct Step {
    Kind kind = Kind::kForm;
    unicode::NormalForm form = unicode::NormalForm::kNfc;
    bool left = false;
    bool right = false;
    std::string content;
    std::optional<Regex> pattern;
  };
  Status add(const nlohmann::json& spec, int depth);

  std::vector<Step> steps_;
};

// {"String": s} or {"Regex": r}, or a plain string; the field every Replace and Split has.
Result<Regex> pattern_from_json(const nlohmann::json& spec, std::string_view where);

}  // namespace fovea
