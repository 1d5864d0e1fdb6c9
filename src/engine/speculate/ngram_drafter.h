// NgramDrafter: drafts the next tokens of one choice from its own prompt and answer (prompt lookup): what followed
// earlier occurrences of its last tokens. Where they went on differently, the draft is a tree. Nothing is kept of
// the text, it is searched anew: four bytes a token of context, where the attention of the same step reads hundreds.
// Called by the engine before each step.
//
// The engine verifies draft tokens by sampling as ever, so they change no answer, only how many steps it takes. Each
// carries its acceptance probability, estimated from the length of the match, from what else followed there, and from
// how matches of that length fared in this choice so far; which of them are worth their cost in a step, the engine
// decides. A choice whose drafts keep being rejected makes none for a while, each time for longer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculate/draft_tree.h"

namespace fovea {

class NgramDrafter {
 public:
  // With the token that is being decoded seven rows, which products compute as they would alone (docs/decisions.md,
  // 15).
  static constexpr std::int32_t kMostTokens = 6;
  static constexpr std::int32_t kFirstPause = 8;

  // At most `most` draft tokens after `tokens` and kMostTokens, best first, each behind its parent: a chain, if not
  // `branches`; the first of `forced`, tokens that a grammar leaves no choice of, where there are any; none in a pause.
  // Once a step.
  DraftTree draft(std::span<const std::int32_t> tokens, std::int32_t most, bool branches,
                  std::span<const std::int32_t> forced = {});
  // What became of the latest draft: these of its tokens were verified, and `last` of them is the end of those that
  // were accepted (-1: none was).
  void verified(std::span<const DraftNode> tree, std::int32_t last);

 private:
  // Matches of about as many tokens, and how often the next token was one that had followed. Old ones count less.
  struct Record {
    float accepted = 0.0f;
    float tries = 0.0f;
  };
  static constexpr std::size_t kLengths = 8;
  static std::size_t length_class(std::int32_t length);
  float trust(std::int32_t length) const;

  std::array<Record, kLengths> records_{};
  std::int32_t match_ = 0;     // tokens of the latest draft's match; 0: it had none, or was of forced tokens
  std::int32_t failures_ = 0;  // drafts in a row of which nothing was accepted
  std::int32_t pause_ = 0;     // steps left without a draft
  std::int32_t next_pause_ = kFirstPause;
};

// Sorts by depth, whatever was before whom among nodes of a depth, and renames parents.
void sort_by_depth(DraftTree& tree);

}  // namespace fovea
