// The policies by which a query's KV pages are selected, by name, and the budget they may spend. Read by the engine
// (options, requests), by the backends' selectors and by the command line.
//
// A policy scores *units* (16 or 64 tokens of a request, at multiples of their size) from statistics of the keys in
// them, for each KV head once: a unit's score is the largest over its sub-pages and over the query heads of the group.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "abi/page_stats.h"
#include "fovea/status.h"

namespace fovea {

enum class SelectScore : std::uint8_t {
  kBound,   // the largest q.k that min and max allow
  kSpread,  // q.mean + 3 sqrt(sum q^2 dev^2)
  kMass,    // logarithm of the share of softmax mass that codes predict, by the largest q.k of a unit
  kCodes,   // the largest q.k over the channels that codes keep of every key
  kOracle,  // the largest q.k there is, read from the keys themselves
  kRandom,  // by position alone, the control of every comparison
};

struct SelectPolicy {
  std::string_view name;
  std::string_view summary;  // for --help
  abi::StatKind stat;        // what pages must carry; kNone: nothing
  SelectScore score;
  std::int32_t unit_tokens;  // a multiple of abi::kSubPageTokens
  float mass = 0.0f;         // share of the predicted mass at which a list may end before its budget; 0: never
};

std::span<const SelectPolicy> select_policies();
// The error lists the names there are. "auto" is the policy that lost the fewest answers (docs/measurements).
Result<const SelectPolicy*> find_select_policy(std::string_view name);

// Tokens a query may read: a number, or a share of what it sees.
struct KvBudget {
  std::int32_t tokens = 4096;
  std::int32_t divisor = 0;  // not 0: tokens seen / divisor, and tokens is not read; 1: all, whatever the units are

  // Of a query that sees `length` tokens.
  std::int32_t at(std::int32_t length) const;
  // What lists of whole units can spend of it: tokens rounded down. Once, where policy and budget of a request meet, so
  // that budgets which read the same are the same.
  KvBudget in_units(std::int32_t unit_tokens) const;
};

// The least a budget may be: sinks, newest tokens and something to choose, in units of 64.
inline constexpr std::int32_t kLeastBudgetTokens = 256;

// "4096", or "T/8" for an eighth of the tokens seen (kLeastBudgetTokens at least).
Result<KvBudget> parse_kv_budget(std::string_view text);

}  // namespace fovea
