// The source of the append kernel, run on the host, against the CPU backend's append and rotation.
#include <gtest/gtest.h>

#include "tests/kernels/append_case.h"

// The kernel comes after what it runs on.
// clang-format off
#include "tests/kernels/host_instructions.h"
#include "kernels/cache/append.cuh"
#include "kernels/cache/append_quantized.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

using namespace kernel_test;

TEST(E4M3Test, RoundsToTheNearest) {
  Random random(1);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = bits_as_float(bits << 16);
    ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
  }
  for (std::uint32_t bits = 0; bits < 0x7e; ++bits) {
    const float middle = 0.5f * (float_of_e4m3(bits) + float_of_e4m3(bits + 1));
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f), -middle}) {
      ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
    }
  }
  for (int i = 0; i < 20000; ++i) {
    const float x = bits_as_float(static_cast<std::uint32_t>(random()) & 0xbfffffffu);
    ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
  }
}

TEST(RotaryTest, AnglesArePreciseFarOut) {
  Random random(2);
  std::uniform_real_distribution<float> exponent(-6.0f, 0.0f);
  double worst = 0.0;
  for (int i = 0; i < 300000; ++i) {
    const float position = static_cast<float>(random() % (i % 2 == 0 ? 1000 : 1 << 22));
    const float inv_freq = i % 16 == 0 ? 1.0f : std::pow(10.0f, exponent(random));
    const double angle = static_cast<double>(position * inv_freq);
    const CosSin pair = rotary_cos_sin(position, inv_freq);
    worst = std::max({worst, std::fabs(pair.cosine - std::cos(angle)), std::fabs(pair.sine - std::sin(angle))});
  }
  EXPECT_LT(worst, 1.2e-7);
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotate>
void check_on_host(std::uint64_t seed) {
  Random random(seed);
  check_append<kHeadDim, kIn, kPool, kVec, kRotate>(seed, [&](const AppendArgs& args) {
    launch_on_host(append_ctas(args, kVec, kHeadDim), abi::kAppendThreads, random,
                   [&](std::uint32_t thread) { Append<kHeadDim, kIn, kPool, kVec, kRotate>::run(args, thread); });
  });
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec>
void check_cases(int count) {
  for (int seed = 0; seed < count && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    check_on_host<kHeadDim, kIn, kPool, kVec, false>(seed);
    check_on_host<kHeadDim, kIn, kPool, kVec, true>(seed);
  }
}

TEST(AppendKernelTest, Bf16) {
  check_cases<128, kBF16, kBF16, 8>(200);
  check_cases<64, kBF16, kBF16, 4>(200);
  check_cases<96, kBF16, kF16, 2>(200);
  check_cases<80, kBF16, kF32, 8>(200);
  check_cases<256, kBF16, kBF16, 1>(50);
}

TEST(AppendKernelTest, F16AndF32) {
  check_cases<32, kF16, kF16, 8>(200);
  check_cases<112, kF16, kBF16, 1>(100);
  check_cases<128, kF32, kBF16, 8>(200);
  check_cases<48, kF32, kF16, 4>(200);
  check_cases<64, kF32, kF32, 2>(200);
}

TEST(AppendKernelTest, E4M3) {
  check_cases<128, kBF16, kE4M3, 8>(100);
  check_cases<64, kF16, kE4M3, 4>(100);
  check_cases<48, kF32, kE4M3, 2>(100);
  check_cases<32, kBF16, kE4M3, 1>(100);
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotated = false>
void check_quantized(int count) {
  for (int seed = 0; seed < count && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<std::uint64_t>(seed));
    check_quantizing_append<kHeadDim, kIn, kPool, kVec, kRotated>(
        static_cast<std::uint64_t>(seed), [&](const AppendArgs& args) {
          launch_on_host(quantizing_ctas(args), abi::kAppendThreads, random, [&](std::uint32_t thread) {
            AppendQuantized<kHeadDim, kIn, kPool, kVec, kRotated>::run(args, thread);
          });
        });
  }
}

TEST(AppendKernelTest, Integers) {
  check_quantized<128, kBF16, KvDType::kI8, 8>(100);
  check_quantized<128, kBF16, KvDType::kI4, 8>(100);
  check_quantized<64, kF16, KvDType::kI8, 4>(100);
  check_quantized<96, kF16, KvDType::kI4, 2>(100);
  check_quantized<48, kF32, KvDType::kI8, 1>(100);
  check_quantized<32, kF32, KvDType::kI4, 1>(100);
}

TEST(AppendKernelTest, RotatedIntegers) {
  check_quantized<128, kBF16, KvDType::kI8, 8, true>(100);
  check_quantized<128, kBF16, KvDType::kI4, 8, true>(100);
  check_quantized<64, kF16, KvDType::kI4, 4, true>(100);
  check_quantized<256, kF32, KvDType::kI8, 2, true>(50);
  check_quantized<32, kF32, KvDType::kI4, 1, true>(100);
}

TEST(AppendKernelTest, E4M3WithAScaleAToken) {
  check_quantized<128, kBF16, kE4M3, 8>(100);
  check_quantized<96, kF16, kE4M3, 2>(100);
  check_quantized<48, kF32, kE4M3, 1>(100);
}

TEST(AppendKernelTest, RunLengthFollowsAlignment) {
  alignas(16) static std::uint8_t memory[64];
  AppendArgs args{};
  args.k = args.v = memory;
  args.k_row_stride = args.v_row_stride = 256;
  args.k_head_stride = args.v_head_stride = 128;
  args.pool.k = args.pool.v = memory;
  args.pool.page_stride = 4096, args.pool.token_stride = 128, args.pool.head_stride = 1024;
  EXPECT_EQ(append_vec(args, 128, 2, 2), 8u);
  EXPECT_EQ(append_vec(args, 128, 4, 2), 8u);
  args.k_head_stride = 132;  // 8 bytes of 16-bit elements, 16 of fp32
  EXPECT_EQ(append_vec(args, 128, 2, 2), 4u);
  EXPECT_EQ(append_vec(args, 128, 4, 2), 8u);
  args.pool.token_stride = 129;
  EXPECT_EQ(append_vec(args, 128, 4, 2), 1u);
  args.pool.token_stride = 128;
  args.k_head_stride = 128;
  args.rotary_dim = 24;  // pairs are 12 elements apart
  EXPECT_EQ(append_vec(args, 96, 2, 2), 4u);
  args.rotary_dim = 0;
  args.v = memory + 2;
  EXPECT_EQ(append_vec(args, 128, 2, 2), 1u);
}

}  // namespace
}  // namespace fovea::kernels
