// What a backend's selector is asked for. Made by the engine's selection stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/select/choose.h"
#include "core/select/policy.h"

namespace fovea {

// One list to be made: of one query token and KV head, or of neighbouring query tokens that read the same units.
struct SelectJob {
  const SelectPolicy* policy = nullptr;
  ChooseRule rule;
  std::int32_t row = 0;   // of q
  std::int32_t rows = 1;  // query tokens [row, row + rows)
  // They are scored by the means of so many neighbours each; a unit's score is the largest that any of these gives.
  std::int32_t mean_rows = 1;
  std::int32_t head = 0;                // KV head
  const std::int32_t* pages = nullptr;  // of the request, in order
  std::int32_t tokens = 0;              // the units are of [0, tokens), which every query sees
  std::uint64_t seed = 0;               // of the policy "random"
  std::span<const std::int32_t> units;  // those to score, ascending, sinks and newest among them
  std::vector<std::int32_t>* chosen = nullptr;
  std::int32_t num_candidates = 0;
  std::vector<std::int32_t>* candidates = nullptr;  // or null
};

}  // namespace fovea
