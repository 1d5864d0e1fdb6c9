// Pre-tokenizers of tokenizer.json: they cut normalized text into the pieces that BPE works on, and some rewrite the
// pieces (ByteLevel, Metaspace). Called by the Tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/tokenizer/regex.h"

namespace fovea {

// Text cut into pieces: half-open byte ranges of `buffer`, in order. `origin` marks the piece whose first character is
// the first of the user's text.
struct PieceList {
  struct Piece {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    bool origin = false;
  };
  std::string buffer;
  std::vector<Piece> pieces;

  std::string_view text(const Piece& piece) const {
    return std::string_view(buffer).substr(piece.begin, piece.end - piece.begin);
  }
};

class PreTokenizer {
 public:
  // From the "pre_tokenizer" field; null gives one that leaves the text whole. Supported types: ByteLevel, Split,
  // Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, Sequence.
  static Result<PreTokenizer> from_json(const nlohmann::json& spec);

  Status apply(PieceList& list) const;

 private:
  enum class Kind {
    kByteLevel,
    kSplit,
    kMetaspace,
    kDigits,
    kPunctuation,
    kWhitespace,
    kWhitespaceSplit,
    kCharDelimiter
  };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Step {
    Kind kind = Kind::kSplit;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool prefix_space = false;          // ByteLevel
    bool split = false;                 // ByteLevel: by regex; Metaspace: at the replacement
    Prepend prepend = Prepend::kNever;  // Metaspace
    std::string text;                   // Metaspace: the replacement; CharDelimiter: the delimiter
    std::optional<Regex> pattern;       // Split, ByteLevel
  };

  Status add(const nlohmann::json& spec, int depth);
  static Result<Behavior> behavior_from_json(const JsonReader& json, std::string_view fallback);
  static Status find_spans(const Step& step, std::string_view text, std::vector<Regex::Span>& spans);
  static void merge_spans(Behavior behavior, std::vector<Regex::Span>& spans);
  static Status run(const Step& step, PieceList& list);

  std::vector<Step> steps_;
};

}  // namespace fovea
