// The cases that `make gpu-test` runs by the thousands, a few of each on the CPU: so that generators, runner and judge
// are known to work before a GPU sees them.
#include "tests/gpu/agreement.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace fovea::gpu_test {
namespace {

TEST(Agreement, TheCpuAgreesWithTheOracleOnTheGeneratedCases) {
  auto place = Place::open("cpu");
  ASSERT_TRUE(place.ok());
  const AgreementCounts counts = run_agreement(**place, 2, 1);
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  std::printf("%d cases of %d requests, %d configurations (%d not on this device)\n", counts.cases, counts.requests,
              counts.configurations, counts.unsupported);
  EXPECT_EQ(counts.unsupported, 0);
  EXPECT_GT(counts.cases, 200);
}

TEST(Agreement, HiddenValuesNeverLeakOnTheCpu) {
  auto place = Place::open("cpu");
  ASSERT_TRUE(place.ok());
  for (const std::string& leak : hidden_values_that_leak(**place)) ADD_FAILURE() << leak;
}

TEST(Agreement, RowsThatSeeNaNAreNaNOnTheCpu) {
  auto place = Place::open("cpu");
  ASSERT_TRUE(place.ok());
  const AgreementCounts counts = run_agreement(**place, 1, 1, "", true);
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  EXPECT_GT(counts.cases, 100);
}

TEST(Agreement, TheJudgeFindsAWrongOutput) {
  auto place = Place::open("cpu");
  ASSERT_TRUE(place.ok());
  const Configuration config = configurations().front();
  auto runner = AgreementRunner::create(**place, config);
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  testing::CaseSpec spec = random_spec(config, 3);
  spec.q_lens = {3};
  spec.kv_lens = {40};
  const testing::AttentionCase c = testing::make_case(spec);
  auto actual = runner->run(c);
  ASSERT_TRUE(actual.ok()) << actual.status().to_string();
  EXPECT_EQ(judge(c, config, *actual), "");
  actual->out[5] += 0.1;
  EXPECT_NE(judge(c, config, *actual), "");
  actual->out[5] -= 0.1;
  actual->lse[1] += 0.01;
  EXPECT_NE(judge(c, config, *actual), "");
}

}  // namespace
}  // namespace fovea::gpu_test
