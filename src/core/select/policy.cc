// The registry and the reading of budgets.
#include "core/select/policy.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr SelectPolicy kPolicies[] = {
    {"fovea", "every key in 4 bits of the 32 channels that queries look at most, learned: 16 bytes a token",
     abi::StatKind::kCodes, SelectScore::kCodes, 16},
    {"fovea-local", "the same of the 32 slowest channels, nothing learned: 20 bytes a token",
     abi::StatKind::kLocalCodes, SelectScore::kCodes, 16},
    {"quest", "min/max of 16 keys, lists of 16 tokens (Quest)", abi::StatKind::kMinMaxF16, SelectScore::kBound, 16},
    {"quest-f8", "the same in fp8 rounded outward: half the bytes", abi::StatKind::kMinMaxF8, SelectScore::kBound, 16},
    {"lserve", "min/max of 16 keys, lists of 64 tokens (LServe)", abi::StatKind::kMinMaxF16, SelectScore::kBound, 64},
    {"mean-dev", "mean and deviation of 16 keys, lists of 16 tokens", abi::StatKind::kMeanDevF16, SelectScore::kSpread,
     16},
    {"mass", "as many units of 16 as hold .95 of the softmax mass that the codes of fovea-local predict",
     abi::StatKind::kLocalCodes, SelectScore::kMass, 16, 0.95f},
    {"oracle", "the largest q.k itself: what a perfect statistic would find, for evaluation", abi::StatKind::kNone,
     SelectScore::kOracle, 16},
    {"random", "units at random: the control, for evaluation", abi::StatKind::kNone, SelectScore::kRandom, 16},
};
constexpr std::string_view kAuto = "fovea";

}  // namespace

std::span<const SelectPolicy> select_policies() { return kPolicies; }

Result<const SelectPolicy*> find_select_policy(std::string_view name) {
  const std::string_view wanted = name == "auto" ? kAuto : name;
  std::string names = "auto";
  for (const SelectPolicy& policy : kPolicies) {
    if (policy.name == wanted) return &policy;
    names += fmt::format(", {}", policy.name);
  }
  return invalid_argument("sparse is {}, and no selection policy has that name; there are {}", quote(name), names);
}

std::int32_t KvBudget::at(std::int32_t length) const {
  if (divisor == 1) return std::numeric_limits<std::int32_t>::max();
  return divisor == 0 ? tokens : std::max(length / divisor, kLeastBudgetTokens);
}

KvBudget KvBudget::in_units(std::int32_t unit_tokens) const { return {tokens / unit_tokens * unit_tokens, divisor}; }

Result<KvBudget> parse_kv_budget(std::string_view text) {
  const bool share = text.starts_with("T/");
  const std::string_view digits = share ? text.substr(2) : text;
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) {
    return invalid_argument("kv_budget is {}; expected tokens, as 4096, or a share of what is seen, as T/8",
                            quote(text));
  }
  if (!share && number < kLeastBudgetTokens) {
    return invalid_argument("kv_budget is {} tokens; expected {} or more", number, kLeastBudgetTokens);
  }
  return share ? KvBudget{0, number} : KvBudget{number, 0};
}

}  // namespace fovea
