// Policies, budgets, choices and what is remembered across steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
#include "core/select/choose.h"
#include "core/select/policy.h"
#include "core/select/reuse.h"

namespace fovea {
namespace {

TEST(SelectPolicy, TheRegistryIsSound) {
  std::set<std::string_view> names;
  for (const SelectPolicy& policy : select_policies()) {
    EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
    EXPECT_FALSE(policy.summary.empty());
    EXPECT_EQ(policy.unit_tokens % abi::kSubPageTokens, 0);
    EXPECT_EQ(policy.stat == abi::StatKind::kNone,
              policy.score == SelectScore::kOracle || policy.score == SelectScore::kRandom);
    EXPECT_EQ(abi::stat_bytes(policy.stat, 128) % 4, 0);
    const auto found = find_select_policy(policy.name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, &policy);
  }
  EXPECT_TRUE(find_select_policy("auto").ok());
  const auto missing = find_select_policy("best");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kInvalidArgument);  // 400 and exit code 2, not "no such page"
  EXPECT_NE(missing.status().message().find("lserve"), std::string::npos);
}

TEST(KvBudget, NumbersAndShares) {
  EXPECT_EQ(parse_kv_budget("4096")->at(100000), 4096);
  EXPECT_EQ(parse_kv_budget("T/8")->at(16384), 2048);
  EXPECT_EQ(parse_kv_budget("T/8")->at(64), kLeastBudgetTokens);
  for (const std::int32_t unit : {16, 64}) {
    ChooseRule all;
    all.unit_tokens = unit;
    for (const std::int32_t tokens : {1, 16, 17, 1000, 131071}) {
      all.budget_tokens = parse_kv_budget("T/1")->at(tokens);
      EXPECT_TRUE(under_budget(all, tokens)) << unit << " " << tokens;
    }
  }
  for (const char* wrong : {"", "T", "T/", "T/0", "8/T", "255", "-1", "4096 ", "1e3", "99999999999"}) {
    EXPECT_FALSE(parse_kv_budget(wrong).ok()) << wrong;
  }
}

std::vector<std::int32_t> all_units(std::int32_t count) {
  std::vector<std::int32_t> units(static_cast<std::size_t>(count));
  std::iota(units.begin(), units.end(), 0);
  return units;
}

// Random lengths, budgets, units and scores, NaN and infinities among them.
TEST(ChooseUnits, ListsAreSortedUniqueWithinBudgetAndHoldWhatIsForced) {
  PhiloxRng rng(1);
  ChooseScratch scratch;
  for (int round = 0; round < 2000; ++round) {
    ChooseRule rule;
    rule.unit_tokens = 16 << (rng.next_below(3));
    rule.budget_tokens = kLeastBudgetTokens + static_cast<std::int32_t>(rng.next_below(2000));
    rule.sink_tokens = static_cast<std::int32_t>(rng.next_below(33));
    rule.recent_tokens = 1 + static_cast<std::int32_t>(rng.next_below(16));
    rule.mass = round % 3 == 0 ? 0.9f : 0.0f;
    const auto tokens = 1 + static_cast<std::int32_t>(rng.next_below(6000));
    const auto units = all_units(num_units(tokens, rule.unit_tokens));
    std::vector<float> scores;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const std::uint32_t kind = rng.next_below(40);
      scores.push_back(kind == 0   ? std::numeric_limits<float>::quiet_NaN()
                       : kind == 1 ? std::numeric_limits<float>::infinity()
                       : kind == 2 ? -std::numeric_limits<float>::infinity()
                                   : rng.next_normal() * 10.0f);
    }
    std::vector<std::int32_t> chosen;
    std::vector<std::int32_t> candidates;
    const std::int32_t most = rule.budget_tokens / rule.unit_tokens;
    choose_units(units, scores, rule, tokens, scratch, &chosen, 4 * most, &candidates);
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    ASSERT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    ASSERT_LE(chosen.size(), static_cast<std::size_t>(most));
    if (rule.mass == 0.0f) {
      ASSERT_EQ(chosen.size(), std::min<std::size_t>(units.size(), static_cast<std::size_t>(most)));
    }
    ASSERT_GE(chosen.front(), 0);
    ASSERT_LT(chosen.back(), static_cast<std::int32_t>(units.size()));
    const auto holds = [&](std::int32_t unit) { return std::binary_search(chosen.begin(), chosen.end(), unit); };
    for (std::int32_t t = 0; t < std::min(rule.sink_tokens, tokens); ++t) ASSERT_TRUE(holds(t / rule.unit_tokens));
    for (std::int32_t t = std::max(0, tokens - rule.recent_tokens); t < tokens; ++t) {
      ASSERT_TRUE(holds(t / rule.unit_tokens));
    }
    ASSERT_TRUE(std::includes(candidates.begin(), candidates.end(), chosen.begin(), chosen.end()));
    ASSERT_EQ(under_budget(rule, tokens), units.size() <= static_cast<std::size_t>(most));
  }
}

TEST(ChooseUnits, TakesTheBestAndOfEqualsTheFirst) {
  ChooseRule rule;
  rule.budget_tokens = 16 * 5;
  ChooseScratch scratch;
  std::vector<std::int32_t> chosen;
  const std::vector<float> scores = {0, 1, 5, 2, 5, 2, 2, -1, 0, 0};
  choose_units(all_units(10), scores, rule, 160, scratch, &chosen);
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{0, 2, 3, 4, 9}));
}

TEST(ChooseUnits, MassEndsAListEarly) {
  ChooseRule rule;
  rule.budget_tokens = 16 * 64;
  rule.mass = 0.95f;
  ChooseScratch scratch;
  std::vector<std::int32_t> chosen;
  std::vector<float> scores(200, -20.0f);
  for (std::size_t i = 50; i < 60; ++i) scores[i] = 1.0f;
  choose_units(all_units(200), scores, rule, 3200, scratch, &chosen);
  EXPECT_EQ(chosen.size(), 12u);  // ten that hold it, a sink and the newest
  EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), 55));
  std::fill(scores.begin(), scores.end(), 0.0f);
  choose_units(all_units(200), scores, rule, 3200, scratch, &chosen);
  EXPECT_EQ(chosen.size(), 64u);  // spread evenly, it takes all of the budget
}

TEST(SelectWork, ScansByItsOwnPhaseAndWhenStepsWereMissed) {
  const ReuseRule rule{4, 4};
  SelectMemory memory;
  EXPECT_EQ(select_work(rule, memory, 100, 0), SelectWork::kScan);
  memory.scanned_tokens = 100;
  EXPECT_EQ(select_work(rule, memory, 101, 0), SelectWork::kRescore);
  EXPECT_EQ(select_work(rule, memory, 103, 0), SelectWork::kRescore);
  EXPECT_EQ(select_work(rule, memory, 104, 0), SelectWork::kScan);
  EXPECT_EQ(select_work(rule, memory, 101, 3), SelectWork::kScan);  // its phase
  EXPECT_EQ(select_work(rule, memory, 150, 1), SelectWork::kScan);  // it waited
  EXPECT_EQ(select_work(rule, memory, 100, 1), SelectWork::kScan);  // computed again
  EXPECT_EQ(select_work({1, 4}, memory, 101, 0), SelectWork::kScan);
  EXPECT_EQ(select_work({4, 0}, memory, 101, 0), SelectWork::kKeep);
  memory.forget();
  EXPECT_EQ(select_work(rule, memory, 101, 0), SelectWork::kScan);
}

TEST(SelectWork, RescoresCandidatesAndWhatWasWrittenSince) {
  SelectMemory memory;
  memory.candidates = {0, 3, 7, 40, 62};
  memory.scanned_tokens = 1000;  // unit 62 was being written
  ChooseRule rule;
  std::vector<std::int32_t> units;
  units_to_rescore(memory, rule, 1010, &units);
  EXPECT_EQ(units, (std::vector<std::int32_t>{0, 3, 7, 40, 62, 63}));
  units_to_rescore(memory, rule, 1001, &units);
  EXPECT_EQ(units, (std::vector<std::int32_t>{0, 3, 7, 40, 61, 62}));  // the newest 16 tokens begin in 61
}

}  // namespace
}  // namespace fovea
