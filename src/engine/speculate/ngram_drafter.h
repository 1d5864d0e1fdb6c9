// NgramDrafter: guesses the next tokens of one choice from its own prompt and answer (prompt lookup): what followed the
// longest earlier occurrence of its last tokens. Nothing is kept of the text, it is searched anew: four bytes a token
// of context, where the attention of the same step reads hundreds. Called by the engine before each step.
//
// The engine verifies guesses by sampling as ever, so they change no answer, only how many steps it takes. Their number
// follows what was accepted; a choice whose guesses keep being wrong makes none for a while, each time for longer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

// Up to `most` guesses after `tokens`: those after the latest of the longest matches of at least kMinMatch last tokens.
// Where they reach the end of `tokens`, they go on with themselves (a loop goes on). `sure`: as many at least after a
// match that is long.
std::vector<std::int32_t> lookup_draft(std::span<const std::int32_t> tokens, std::int32_t most, std::int32_t sure = 0);

class NgramDrafter {
 public:
  // With the token that is being decoded seven rows: up to there, products read the weights once and compute a row as
  // they would alone (docs/decisions.md, 15).
  static constexpr std::int32_t kMostTokens = 6;
  static constexpr std::int32_t kFirstPause = 8;

  // At most `most` guesses after `tokens`: of `sure`, where somebody else knows better; none in a pause. Once a step.
  std::vector<std::int32_t> draft(std::span<const std::int32_t> tokens, std::int32_t most,
                                  std::span<const std::int32_t> sure = {});
  // Of the latest draft, so many were verified, and the first `accepted` of them right.
  void verified(std::int32_t drafted, std::int32_t accepted);

 private:
  std::int32_t length_ = kMostTokens / 2;
  std::int32_t failures_ = 0;  // drafts in a row of which nothing was right
  std::int32_t pause_ = 0;     // steps left without a draft
  std::int32_t next_pause_ = kFirstPause;
};

}  // namespace fovea
