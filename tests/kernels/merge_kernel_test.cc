// The source of the merge kernels, run on the host, against the definition in double.
#include <gtest/gtest.h>

#include "tests/kernels/merge_case.h"

// The kernel comes after what it runs on.
// clang-format off
#include "tests/kernels/host_instructions.h"
#include "kernels/cache/merge_states.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

using namespace kernel_test;

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kOut, std::uint32_t kVec>
void check_cases(int count) {
  using Kernel = Merge<kHeadDim, kIn, kOut, kVec>;
  for (int seed = 0; seed < count && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    check_merge_two<kHeadDim, kIn, kOut, kVec>(seed, [&](const MergeArgs& args) {
      launch_on_host(merge_ctas(args, kHeadDim, kVec), abi::kMergeThreads, random,
                     [&](std::uint32_t thread) { Kernel::two(args, thread); });
    });
    check_merge_many<kHeadDim, kIn, kOut, kVec>(seed, [&](const MergeArgs& args) {
      launch_on_host(merge_ctas(args, kHeadDim, kVec), abi::kMergeThreads, random,
                     [&](std::uint32_t thread) { Kernel::many(args, thread); });
    });
  }
}

TEST(MergeKernelTest, SameTypes) {
  check_cases<128, kBF16, kBF16, 8>(300);
  check_cases<64, kF16, kF16, 8>(300);
  check_cases<128, kF32, kF32, 4>(300);
  check_cases<80, kBF16, kBF16, 2>(300);
  check_cases<96, kF32, kF32, 8>(300);
  check_cases<256, kF16, kF16, 1>(100);
}

TEST(MergeKernelTest, OtherTypesOut) {
  check_cases<128, kF32, kBF16, 8>(300);
  check_cases<112, kF32, kF16, 4>(300);
  check_cases<64, kBF16, kF32, 8>(300);
}

TEST(MergeKernelTest, NaNOfAStateThatCountsIsSeen) {
  Random random(1);
  States a(random, kF32, 1, 1, 1, 32, 8), b = a;
  a.s[0] = 1.0f;
  b.s[0] = kNaN;
  std::vector<float> v_out(32), s_out(1);
  MergeArgs args{};
  args.a = a.view(), args.b = b.view();
  args.v_out = v_out.data(), args.s_out = s_out.data();
  args.rows = args.heads = 1;
  launch_on_host(1, abi::kMergeThreads, random,
                 [&](std::uint32_t thread) { Merge<32, kF32, kF32, 8>::two(args, thread); });
  EXPECT_TRUE(std::isnan(s_out[0]));
  EXPECT_TRUE(std::isnan(v_out[0]));
}

}  // namespace
}  // namespace fovea::kernels
