// From scores to a list: the pure half of selection. Called by the backends' selectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

struct ChooseRule {
  std::int32_t unit_tokens = 16;
  std::int32_t budget_tokens = 4096;  // at least kLeastBudgetTokens
  std::int32_t sink_tokens = 16;      // the first tokens, always in the list
  std::int32_t recent_tokens = 16;    // the newest tokens, always in the list
  // Not 0: scores are natural logarithms of mass, and a list ends as soon as it holds this share of the whole, but not
  // below an eighth of the budget.
  float mass = 0.0f;
};

// What a choice sorts; kept between calls so that none allocates.
struct ChooseScratch {
  std::vector<std::uint64_t> keys;
};

// Units of `tokens` tokens, the last may be shorter.
constexpr std::int32_t num_units(std::int32_t tokens, std::int32_t unit_tokens) {
  return (tokens + unit_tokens - 1) / unit_tokens;
}

// Whether a query that sees `tokens` tokens sees all of them whatever the scores are.
bool under_budget(const ChooseRule& rule, std::int32_t tokens);

// Fills *chosen with units, ascending and unique: sinks and newest, then the best others, budget_tokens / unit_tokens
// at most. units: those that were scored, ascending, sinks and newest among them; scores: one each. Ties go to the
// earlier unit, NaN counts as the worst. Where `candidates` is not null it gets the best num_candidates units, the
// chosen among them, ascending too.
void choose_units(std::span<const std::int32_t> units, std::span<const float> scores, const ChooseRule& rule,
                  std::int32_t tokens, ChooseScratch& scratch, std::vector<std::int32_t>* chosen,
                  std::int32_t num_candidates = 0, std::vector<std::int32_t>* candidates = nullptr);

}  // namespace fovea
