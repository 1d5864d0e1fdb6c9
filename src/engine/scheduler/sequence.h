// Sequence: one choice of a request as the scheduler sees it: its tokens, and where their KV stands. Made by the
// engine, which owns it; the fields under "scheduler" are the Scheduler's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/select/policy.h"
#include "engine/cache/radix_cache.h"
#include "engine/cache/req_to_token_pool.h"
#include "engine/sampler/draw.h"
#include "engine/speculate/draft_tree.h"

namespace fovea {

// Which pages a sequence's queries read. Whether a query selects depends on its position alone, so that chunks, the
// prefix cache and retraction change nothing.
struct SparseSetting {
  const SelectPolicy* policy = nullptr;  // null: every query reads all
  KvBudget budget;                       // this and prompt_budget in whole units of the policy
  std::int32_t first_position = 0;       // queries before it read all, or what prompt_budget allows
  // Of tokens before first_position, in blocks of kPromptBlock neighbours; where the budget of the others is larger,
  // that holds for them too. None: they read all.
  static constexpr std::int32_t kPromptBlock = 64;
  std::optional<KvBudget> prompt_budget;
  std::uint64_t phase = 0;  // of full scans (core/select/reuse.h): the request's own, wherever it runs

  // Leading tokens that are the same for every sequence of equal salt: those before first_position, and what the budget
  // covers anyway.
  std::int32_t dense_tokens() const {
    if (policy == nullptr) return std::numeric_limits<std::int32_t>::max();
    return std::max(first_position, budget.at(1) / policy->unit_tokens * policy->unit_tokens);
  }
};

enum class SequenceState : std::uint8_t { kNew, kWaiting, kRunning, kDone };

struct Sequence {
  std::uint64_t id = 0;              // unique; orders sequences of equal priority and arrival
  std::uint64_t arrival = 0;         // of the request; smaller is earlier
  std::int32_t priority = 0;         // lower is served first
  std::string salt;                  // prefixes are shared only between equal salts
  std::vector<std::int32_t> tokens;  // prompt, then what was generated
  std::int32_t prompt_length = 0;
  SparseSetting sparse;
  bool greedy = false;  // the largest logit alone says which token comes next
  DrawSetting draw;     // or a device may draw it from the logits as they are
  // Leading tokens of the prompt whose logits have been taken, all of which are wanted; -1: only the last token's are.
  std::int32_t scored = -1;
  DraftTree draft;  // of what comes after tokens, by depth, for the next step to verify

  // Scheduler.
  SequenceState state = SequenceState::kNew;
  std::int32_t slot = ReqToTokenPool::kNoSlot;
  std::int32_t computed = 0;       // leading tokens whose KV is in pages
  std::int32_t cached_tokens = 0;  // of the prompt, found in the cache when first admitted
  bool admitted_before = false;
  std::chrono::steady_clock::time_point admitted_at;  // first
  RadixCache::Node* node = nullptr;                   // where it stands in the cache, locked
  std::int32_t published = 0;                         // leading pages that the cache has too
  std::vector<std::int32_t> dropped;  // [group] pages between the sinks and this one are given up: they left the window
  std::uint64_t last_step = 0;        // number of the latest step it is in
  std::uint64_t waits_for = 0;        // id of the sequence that computes a prefix this one needs
  std::int32_t waits_until = 0;       // ..., and how many tokens of it
  bool restored = false;              // what could come back of its prefix has
  bool waits_to_restore = false;      // ..., or will when others have theirs

  std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
  // Tokens to be computed before the next one can be sampled.
  std::int32_t remaining() const { return length() - computed; }
};

}  // namespace fovea
