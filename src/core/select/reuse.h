// Selection across steps: what a (layer, KV head) of a request remembers of its last full scan, and what of its units a
// step scores. Between full scans only the candidates of the last one (a few times the budget) and the units written
// since are scored, so that every step's choice is fresh and most steps read few statistics: a list that is merely kept
// misses what the newest query looks for. Owned by the engine's selection stage; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/choose.h"

namespace fovea {

struct ReuseRule {
  std::int32_t interval = 1;          // steps from one full scan to the next; 1: every step scans all
  std::int32_t candidate_factor = 4;  // candidates kept, in budgets; 0: lists are kept as they are, for comparison
};

struct SelectMemory {
  std::vector<std::int32_t> candidates;  // units, ascending
  std::int32_t scanned_tokens = 0;       // tokens seen at the last full scan; 0: there was none

  void forget() { scanned_tokens = 0; }
};

enum class SelectWork : std::uint8_t { kScan, kRescore, kKeep };

// What a query that sees `tokens` tokens does. phase spreads the full scans of requests over the steps: those that see
// k * interval + phase tokens scan. Anything but a step of one token forces a scan, and so does a request that waited.
SelectWork select_work(const ReuseRule& rule, const SelectMemory& memory, std::int32_t tokens, std::uint64_t phase);

// The units that kRescore scores and kKeep lists: candidates, units written since the scan, sinks and newest.
void units_to_rescore(const SelectMemory& memory, const ChooseRule& rule, std::int32_t tokens,
                      std::vector<std::int32_t>* units);

}  // namespace fovea
