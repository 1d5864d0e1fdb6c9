// Implementation of pre_tokenizer.h. Every step finds spans in each piece, joins them as its behavior says, and
// replaces the piece by the parts; steps that rewrite text build a new buffer.
#include "engine/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/quote.h"
#include "engine/tokenizer/json_util.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

// The pattern of GPT-2's byte-level pre-tokenizer: English contractions, then runs of letters, digits and other
// characters with at most one space before, then white space (a fact of the format).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Spans of single characters for which `matches` holds, and what lies between.
template <typename Predicate>
void split_chars(std::string_view text, std::vector<Regex::Span>& spans, Predicate&& matches) {
  std::uint32_t previous = 0;
  for (std::uint32_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    if (matches(next.code)) {
      if (at != previous) spans.push_back({previous, at, false});
      spans.push_back({at, at + next.length, true});
      previous = at + next.length;
    }
    at += next.length;
  }
  if (previous != text.size()) spans.push_back({previous, static_cast<std::uint32_t>(text.size()), false});
}

// Runs of word characters and runs of other visible characters; white space lies between.
void split_words(std::string_view text, std::vector<Regex::Span>& spans) {
  const auto class_of = [](char32_t code) { return unicode::is_word(code) ? 1 : unicode::is_whitespace(code) ? 0 : 2; };
  for (std::uint32_t at = 0; at < text.size();) {
    const std::uint32_t begin = at;
    const int kind = class_of(unicode::decode(text, at).code);
    while (at < text.size()) {
      const auto next = unicode::decode(text, at);
      if (class_of(next.code) != kind) break;
      at += next.length;
    }
    spans.push_back({begin, at, kind == 0});
  }
}

}  // namespace

Result<PreTokenizer> PreTokenizer::from_json(const nlohmann::json& spec) {
  PreTokenizer made;
  if (!spec.is_null()) FOVEA_RETURN_IF_ERROR(made.add(spec, 0));
  return made;
}

Result<PreTokenizer::Behavior> PreTokenizer::behavior_from_json(const JsonReader& json, std::string_view fallback) {
  FOVEA_ASSIGN_OR_RETURN(const std::string name, json.string_or("behavior", fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return invalid_argument(
      "pre_tokenizer: behavior '{}', expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous",
      shorten(name));
}

Status PreTokenizer::add(const nlohmann::json& spec, int depth) {
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, json_util::typed_part(spec, "pre_tokenizer"));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  const std::string& where = json.where();
  if (type == "Sequence") {
    FOVEA_ASSIGN_OR_RETURN(const auto* parts, json_util::sequence_parts(json, "pretokenizers", depth));
    for (const nlohmann::json& part : *parts) FOVEA_RETURN_IF_ERROR(add(part, depth + 1));
    return ok_status();
  }
  Step step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    FOVEA_ASSIGN_OR_RETURN(step.prefix_space, json.boolean_or("add_prefix_space", true));
    FOVEA_ASSIGN_OR_RETURN(step.split, json.boolean_or("use_regex", true));
    if (step.split) {
      FOVEA_ASSIGN_OR_RETURN(step.pattern, Regex::compile(kByteLevelPattern));
    }
  } else if (type == "Split") {
    step.kind = Kind::kSplit;
    FOVEA_ASSIGN_OR_RETURN(step.pattern, pattern_from_json(json_util::field(spec, "pattern"), where));
    FOVEA_ASSIGN_OR_RETURN(step.behavior, behavior_from_json(json, ""));
    FOVEA_ASSIGN_OR_RETURN(step.invert, json.boolean_or("invert", false));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.behavior = Behavior::kMergedWithNext;
    FOVEA_ASSIGN_OR_RETURN(step.text, json.string_or("replacement", "\xE2\x96\x81"));
    if (step.text.empty() || unicode::lead_length(step.text[0]) != step.text.size()) {
      return invalid_argument("{}: 'replacement' is '{}', expected one character", where, shorten(step.text));
    }
    // Older files say add_prefix_space instead of prepend_scheme.
    FOVEA_ASSIGN_OR_RETURN(const bool legacy, json.boolean_or("add_prefix_space", true));
    FOVEA_ASSIGN_OR_RETURN(const std::string scheme, json.string_or("prepend_scheme", legacy ? "always" : "never"));
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return invalid_argument("{}: 'prepend_scheme' is '{}', expected always, first or never", where, shorten(scheme));
    }
    step.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
    FOVEA_ASSIGN_OR_RETURN(step.split, json.boolean_or("split", true));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    FOVEA_ASSIGN_OR_RETURN(const bool each, json.boolean_or("individual_digits", false));
    step.behavior = each ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    FOVEA_ASSIGN_OR_RETURN(step.behavior, behavior_from_json(json, "Isolated"));
  } else if (type == "Whitespace") {
    step.kind = Kind::kWhitespace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
    step.behavior = Behavior::kRemoved;
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::kWhitespaceSplit;
    step.behavior = Behavior::kRemoved;
    steps_.push_back(step);
    step.kind = Kind::kPunctuation;
    step.behavior = Behavior::kIsolated;
  } else if (type == "CharDelimiterSplit") {
    step.kind = Kind::kCharDelimiter;
    step.behavior = Behavior::kRemoved;
    FOVEA_ASSIGN_OR_RETURN(step.text, json.string("delimiter"));
    if (step.text.empty()) return invalid_argument("{}: 'delimiter' is empty", where);
  } else {
    return unsupported(
        "pre_tokenizer type '{}', expected ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
        "WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit or Sequence",
        shorten(type));
  }
  steps_.push_back(std::move(step));
  return ok_status();
}

Status PreTokenizer::find_spans(const Step& step, std::string_view text, std::vector<Regex::Span>& spans) {
  spans.clear();
  switch (step.kind) {
    case Kind::kSplit:
    case Kind::kByteLevel: FOVEA_RETURN_IF_ERROR(step.pattern->split(text, spans)); break;
    case Kind::kDigits: split_chars(text, spans, unicode::is_numeric); break;
    case Kind::kPunctuation: split_chars(text, spans, unicode::is_punctuation); break;
    case Kind::kWhitespace: split_words(text, spans); break;
    case Kind::kWhitespaceSplit: split_chars(text, spans, unicode::is_whitespace); break;
    case Kind::kMetaspace:
    case Kind::kCharDelimiter: {
      const char32_t wanted = unicode::decode(step.text, 0).code;
      split_chars(text, spans, [wanted](char32_t code) { return code == wanted; });
      break;
    }
  }
  if (step.invert) {
    for (Regex::Span& span : spans) span.match = !span.match;
  }
  merge_spans(step.behavior, spans);
  return ok_status();
}

// Joins spans in place; spans still marked as matches afterwards are dropped by the caller.
void PreTokenizer::merge_spans(Behavior behavior, std::vector<Regex::Span>& spans) {
  if (behavior == Behavior::kRemoved) return;
  if (behavior == Behavior::kIsolated) {
    for (Regex::Span& span : spans) span.match = false;
    return;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::size_t kept = 0;
  bool previous_match = false;
  for (const Regex::Span& span : spans) {
    const bool join = behavior == Behavior::kContiguous ? span.match == previous_match : span.match && !previous_match;
    previous_match = span.match;
    if (join && kept > 0) {
      if (backwards) {
        spans[kept - 1].begin = span.begin;
      } else {
        spans[kept - 1].end = span.end;
      }
    } else {
      spans[kept++] = {span.begin, span.end, false};
    }
  }
  spans.resize(kept);
  if (backwards) std::reverse(spans.begin(), spans.end());
}

Status PreTokenizer::run(const Step& step, PieceList& list) {
  std::vector<Regex::Span> spans;
  std::vector<PieceList::Piece> made;
  made.reserve(list.pieces.size());
  const auto cut = [&](std::uint32_t base, bool origin) {
    for (const Regex::Span& span : spans) {
      if (!span.match && span.begin != span.end) {
        made.push_back({base + span.begin, base + span.end, origin && span.begin == 0});
      }
    }
  };
  if (step.kind != Kind::kByteLevel && step.kind != Kind::kMetaspace) {
    for (const PieceList::Piece& piece : list.pieces) {
      FOVEA_RETURN_IF_ERROR(find_spans(step, list.text(piece), spans));
      cut(piece.begin, piece.origin);
    }
    list.pieces = std::move(made);
    return ok_status();
  }
  std::string buffer;
  buffer.reserve(list.buffer.size() + list.buffer.size() / 4 + 16);
  std::string prefixed;
  const unicode::ByteChars& table = unicode::byte_chars();
  for (const PieceList::Piece& piece : list.pieces) {
    std::string_view text = list.text(piece);
    const auto base = static_cast<std::uint32_t>(buffer.size());
    if (step.kind == Kind::kMetaspace) {
      const bool prepend = step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && piece.origin);
      if (prepend && !text.starts_with(' ') && !text.starts_with(step.text)) buffer.append(step.text);
      for (const char c : text) {
        if (c == ' ') {
          buffer.append(step.text);
        } else {
          buffer.push_back(c);
        }
      }
      const auto end = static_cast<std::uint32_t>(buffer.size());
      if (step.split) {
        FOVEA_RETURN_IF_ERROR(find_spans(step, std::string_view(buffer).substr(base), spans));
      } else {
        spans.assign(1, {0, end - base, false});
      }
      cut(base, piece.origin);
      continue;
    }
    if (step.prefix_space && !text.starts_with(' ')) {
      prefixed.assign(" ").append(text);
      text = prefixed;
    }
    if (step.split) {
      FOVEA_RETURN_IF_ERROR(find_spans(step, text, spans));
    } else {
      spans.assign(1, {0, static_cast<std::uint32_t>(text.size()), false});
    }
    for (const Regex::Span& span : spans) {
      const auto begin = static_cast<std::uint32_t>(buffer.size());
      for (const char c : text.substr(span.begin, span.end - span.begin)) {
        const auto byte = static_cast<unsigned char>(c);
        buffer.append(table.utf8[byte].data(), table.length[byte]);
      }
      if (buffer.size() != begin) {
        made.push_back({begin, static_cast<std::uint32_t>(buffer.size()), piece.origin && span.begin == 0});
      }
    }
  }
  list.buffer = std::move(buffer);
  list.pieces = std::move(made);
  return ok_status();
}

Status PreTokenizer::apply(PieceList& list) const {
  for (const Step& step : steps_) {
    if (list.buffer.size() > (std::size_t{1} << 30)) {
      return out_of_range("pre-tokenized text of {} bytes, expected at most 1 GiB", list.buffer.size());
    }
    FOVEA_RETURN_IF_ERROR(run(step, list));
  }
  return ok_status();
}

}  // namespace fovea
