// The cap on SIMD targets: names, errors, and what kernels then dispatch to.
#include "cpu/simd.h"

#include <gtest/gtest.h>

namespace fovea::cpu {
namespace {

TEST(Simd, CapsAtEveryTargetOfTheMachine) {
  ASSERT_FALSE(simd_targets().empty());
  for (std::string_view name : simd_targets()) {
    ASSERT_TRUE(set_simd_cap(name).ok());
    EXPECT_EQ(simd_target(), name);
  }
  ASSERT_TRUE(set_simd_cap("").ok());
  EXPECT_EQ(simd_target(), simd_targets().front());
}

TEST(Simd, RefusesUnknownNames) {
  const Status status = set_simd_cap("avx1024");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("avx1024"), std::string::npos);
}

}  // namespace
}  // namespace fovea::cpu
