// The guide that `fovea demo` asks about: facts stand where they are said to, lengths fit, seeds repeat.
#include "demo/guide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace fovea::app {
namespace {

std::size_t words(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; }));
}

TEST(Guide, FactsStandWhereTheyAreSaidToAndOnlyThere) {
  const Guide guide = write_guide(7, 64, 256);
  ASSERT_EQ(guide.facts.size(), 64u);
  std::set<std::string> questions;
  for (const GuideFact& fact : guide.facts) {
    EXPECT_EQ(guide.text.substr(fact.offset, fact.sentence.size()), fact.sentence);
    EXPECT_EQ(guide.text.find(fact.sentence), fact.offset);
    EXPECT_NE(fact.sentence.find(fact.value), std::string::npos);
    questions.insert(fact.question);
  }
  EXPECT_EQ(questions.size(), 64u);
  EXPECT_EQ(guide.text.find('{'), std::string::npos);
}

TEST(Guide, TheSeedDecides) {
  EXPECT_EQ(write_guide(7, 20, 60).text, write_guide(7, 20, 60).text);
  EXPECT_NE(write_guide(7, 20, 60).text, write_guide(8, 20, 60).text);
}

TEST(Guide, FitsWithinTwoPercentOrLeavesHousesOut) {
  for (const std::size_t most : {2000u, 5000u, 20000u}) {
    const std::size_t got = words(fit_guide(3, 64, most, words).text);
    EXPECT_LE(got, most);
    EXPECT_GE(got * 100, most * 98);
  }
  const Guide small = fit_guide(3, 64, 200, words);
  EXPECT_LE(words(small.text), 200u);
  EXPECT_LT(small.facts.size(), 64u);
  EXPECT_GE(small.facts.size(), 5u);
}

TEST(Guide, ChoosesFactsOfTheWholeLength) {
  const Guide guide = write_guide(7, 60, 100);
  const std::vector<GuideFact> facts = choose_facts(guide, 7, 12);
  ASSERT_EQ(facts.size(), 12u);
  std::set<std::size_t> tenths;
  for (const GuideFact& fact : facts) tenths.insert(fact.offset * 10 / guide.text.size());
  EXPECT_GE(tenths.size(), 9u);
  EXPECT_EQ(choose_facts(guide, 7, 1000).size(), 60u);
}

}  // namespace
}  // namespace fovea::app
