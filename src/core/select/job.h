// What a backend's selector is asked for. Made by the engine's selection stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/select/choose.h"
#include "core/select/policy.h"

namespace fovea {

// One list to be made: of one query token and KV head.
struct SelectJob {
  const SelectPolicy* policy = nullptr;
  ChooseRule rule;
  std::int32_t row = 0;                 // of q
  std::int32_t head = 0;                // KV head
  const std::int32_t* pages = nullptr;  // of the request, in order
  std::int32_t tokens = 0;              // the query sees [0, tokens)
  std::uint64_t seed = 0;               // of the policy "random"
  std::span<const std::int32_t> units;  // those to score, ascending, sinks and newest among them
  std::vector<std::int32_t>* chosen = nullptr;
  std::int32_t num_candidates = 0;
  std::vector<std::int32_t>* candidates = nullptr;  // or null
};

}  // namespace fovea
