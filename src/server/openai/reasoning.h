// ReasoningParser: cuts the reasoning that a model writes between tags in front of its answer from the answer, while
// the text comes. Used by AnswerParser.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace fovea::server {

struct ReasoningFormat {
  std::string_view name;  // as --reasoning-parser takes it
  std::string_view opening, closing;
};

// Null where the template speaks of no reasoning.
const ReasoningFormat* reasoning_format_of(std::string_view chat_template);
// Null where there is none of that name.
const ReasoningFormat* reasoning_format_named(std::string_view name);

class ReasoningParser {
 public:
  // open: the prompt ended with the opening tag, as some templates do. The format must outlive the parser.
  ReasoningParser(const ReasoningFormat& format, bool open)
      : format_(format), where_(open ? Where::kLeading : Where::kBefore) {}

  // What became certain; reasoning comes before the rest.
  struct Piece {
    std::string reasoning, rest;
  };
  Piece append(std::string_view text);
  // The end of the answer; without a closing tag all of it was reasoning.
  Piece finish();
  // Inside the tags, as far as is known.
  bool inside() const { return where_ == Where::kLeading || where_ == Where::kInside; }

 private:
  // kBefore: nothing but whitespace came; kLeading, kTrailing: whitespace behind a tag, which is dropped.
  enum class Where { kBefore, kLeading, kInside, kTrailing, kRest };
  void step(char c, Piece* out);

  const ReasoningFormat& format_;
  Where where_;
  std::string held_;  // what may be a tag, and the whitespace before it
};

}  // namespace fovea::server
