// The environment table: order, defaults, parsing and messages.
#include "base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace fovea {
namespace {

TEST(Env, TableIsInOrderOfIds) {
  ASSERT_EQ(env_table().size(), static_cast<std::size_t>(EnvVar::kCount));
  for (std::size_t i = 0; i < env_table().size(); ++i) {
    const EnvEntry& entry = env_table()[i];
    EXPECT_EQ(static_cast<std::size_t>(entry.id), i);
    EXPECT_TRUE(std::string_view(entry.name).starts_with("FOVEA_")) << entry.name;
    EXPECT_NE(std::string_view(entry.meaning), "");
  }
}

TEST(Env, UnsetAndEmptyGiveTheDefault) {
  unsetenv("FOVEA_NUM_THREADS");
  EXPECT_EQ(env_string(EnvVar::kNumThreads), "0");
  setenv("FOVEA_NUM_THREADS", "", 1);
  EXPECT_EQ(env_string(EnvVar::kNumThreads), "0");
  unsetenv("FOVEA_NUM_THREADS");
}

TEST(Env, IntegersAreParsedWhole) {
  setenv("FOVEA_NUM_THREADS", "12", 1);
  EXPECT_EQ(*env_int(EnvVar::kNumThreads, 0, 64), 12);
  for (const char* bad : {"12x", "x", "65", "-1", " 3", "99999999999999999999"}) {
    setenv("FOVEA_NUM_THREADS", bad, 1);
    const auto value = env_int(EnvVar::kNumThreads, 0, 64);
    ASSERT_FALSE(value.ok()) << bad;
    EXPECT_EQ(value.status().message(),
              std::string("FOVEA_NUM_THREADS is \"") + bad + "\", expected an integer from 0 to 64");
  }
  unsetenv("FOVEA_NUM_THREADS");
}

}  // namespace
}  // namespace fovea
