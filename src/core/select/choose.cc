// A choice is one nth_element over 64-bit keys that order by score and then by unit.
#include "core/select/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace fovea {
namespace {

// Orders as the float does; the unit in the low half, inverted, so that among equals the earlier one is the greater.
std::uint64_t key_of(float score, std::int32_t unit) {
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<std::uint32_t>(score);
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (std::uint64_t{ordered} << 32) | ~static_cast<std::uint32_t>(unit);
}
std::int32_t unit_of(std::uint64_t key) { return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key)); }
float score_of(std::uint64_t key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

void take(std::span<const std::uint64_t> keys, std::vector<std::int32_t>* out) {
  out->clear();
  for (const std::uint64_t key : keys) out->push_back(unit_of(key));
  std::sort(out->begin(), out->end());
}

// The greatest `count` keys come first, in no order.
void bring_forward(std::span<std::uint64_t> keys, std::size_t count) {
  if (count >= keys.size()) return;
  std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), keys.end(), std::greater<>());
}

// How many of the best units, best first, hold the share of the mass of all; `least` at least. scores: of all units,
// natural logarithms; the best of them stand in `sorted`, forced ones in front with the mass `forced`.
std::size_t units_of_mass(std::span<const std::uint64_t> sorted, std::span<const float> scores, double forced,
                          float top, float share, std::size_t least) {
  double whole = 0.0;
  for (const float score : scores) whole += std::isnan(score) ? 0.0 : std::exp(double{score} - top);
  double held = forced;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i >= least && held >= share * whole) return i;
    const float score = score_of(sorted[i]);
    if (std::isfinite(score)) held += std::exp(double{score} - top);
  }
  return sorted.size();
}

}  // namespace

bool under_budget(const ChooseRule& rule, std::int32_t tokens) {
  return num_units(tokens, rule.unit_tokens) <= rule.budget_tokens / rule.unit_tokens;
}

void choose_units(std::span<const std::int32_t> units, std::span<const float> scores, const ChooseRule& rule,
                  std::int32_t tokens, ChooseScratch& scratch, std::vector<std::int32_t>* chosen,
                  std::int32_t num_candidates, std::vector<std::int32_t>* candidates) {
  constexpr float kForced = std::numeric_limits<float>::infinity();
  const std::int32_t sink_end = num_units(rule.sink_tokens, rule.unit_tokens);
  const std::int32_t recent_begin = std::max(0, tokens - rule.recent_tokens) / rule.unit_tokens;
  const auto most = static_cast<std::size_t>(std::max(rule.budget_tokens / rule.unit_tokens, 1));
  std::vector<std::uint64_t>& keys = scratch.keys;
  keys.clear();
  std::size_t forced = 0;
  double forced_mass = 0.0;
  float top = -std::numeric_limits<float>::max();
  if (rule.mass > 0.0f) {
    for (const float score : scores) top = score > top && score < kForced ? score : top;
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool force = units[i] < sink_end || units[i] >= recent_begin;
    forced += force ? 1 : 0;
    if (force && rule.mass > 0.0f && !std::isnan(scores[i])) forced_mass += std::exp(double{scores[i]} - top);
    keys.push_back(key_of(force ? kForced : std::min(scores[i], std::numeric_limits<float>::max()), units[i]));
  }
  if (candidates != nullptr) {
    bring_forward(keys, static_cast<std::size_t>(num_candidates));
    take(std::span(keys).first(std::min(keys.size(), static_cast<std::size_t>(num_candidates))), candidates);
  }
  bring_forward(keys, most);
  std::span<std::uint64_t> best = std::span(keys).first(std::min(keys.size(), most));
  if (rule.mass > 0.0f) {
    std::sort(best.begin(), best.end(), std::greater<>());
    const std::size_t least = std::min(best.size(), std::max(forced, most / 8));
    best = best.first(units_of_mass(best, scores, forced_mass, top, rule.mass, least));
  }
  take(best, chosen);
}

}  // namespace fovea
