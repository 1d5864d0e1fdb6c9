// How small products are divided and launched, on a driver without a GPU whose kernel multiplies what each warp is
// given; and what is refused.
#include "device/cuda/skinny_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "cuda/testing/fake_driver.h"
#include "device/cuda/product_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

// Before anything asks for the driver or for kernels.
const bool kPrepared = fake::name_driver_and_cache();

// The product as the warps of the grid share it: whatever is left out or multiplied twice is missing in y, or too much.
void multiply(const abi::LinearArgs& a) {
  const abi::LinearShape& s = a.shape;
  const auto* x = static_cast<const std::uint16_t*>(a.x);
  const auto w = [&](std::size_t i) {
    return a.scales == nullptr ? bf16_to_float(static_cast<const std::uint16_t*>(s.w)[i])
                               : e4m3_to_float(static_cast<const std::uint8_t*>(s.w)[i]);
  };
  std::vector<std::vector<double>> sums(a.tokens, std::vector<double>(2 * s.pairs, 0.0));
  for (std::uint32_t cluster = 0; cluster < s.clusters; ++cluster) {
    const abi::LinearPairs pairs = abi::linear_pairs(s, cluster);
    for (std::uint32_t warp = 0; warp < abi::kLinearWarps * s.split; ++warp) {
      const abi::LinearSlices slices = abi::linear_slices(s, warp, 1);
      ASSERT_EQ(s.slice, abi::linear_weight_slice(a.scales != nullptr));
      ASSERT_LE((slices.end - slices.begin) * s.slice / 32, abi::linear_warp_slices(a.tokens > 8 ? 2 : 1));
      for (std::uint32_t row = 2 * pairs.begin; row < 2 * pairs.end; ++row) {
        const std::size_t at = s.half == 1 ? row : row / 2 + row % 2 * std::size_t{s.half};
        const float scale = a.scales == nullptr ? 1.0f : a.scales[at];
        for (std::uint32_t k = s.slice * slices.begin; k < s.slice * slices.end; ++k) {
          for (std::uint32_t t = 0; t < a.tokens; ++t) {
            sums[t][row] += bf16_to_float(x[t * a.x_stride + k]) * w(at * s.k + k) * scale;
          }
        }
      }
    }
  }
  write_products(a, sums);
}

class SkinnyLinearTest : public ProductTest {
 protected:
  SkinnyLinearTest() : ProductTest("fovea_linear", multiply) {}

  Status create(const ProductSpec& spec) { return SkinnyLinear::create(*device_, spec, weights()).status(); }

  // Small integers, so that sums are exact; against the definition.
  void expect_product(std::int64_t in, std::int64_t out, std::int64_t rows, bool gated, bool fp8 = false) {
    SCOPED_TRACE(::testing::Message() << in << " in, " << out << " out, " << rows << " rows, gated " << gated
                                      << ", fp8 " << fp8);
    ProductSpec spec{.in = in, .out = out, .fp8 = fp8, .most_rows = fp8 ? 8 : 16};
    if (gated) spec.activation = abi::LinearActivation::kSilu;
    scales_.resize(static_cast<std::size_t>(out));
    const Result<SkinnyLinear> linear = SkinnyLinear::create(*device_, spec, weights(), fp8 ? scales_.data() : nullptr);
    ASSERT_TRUE(linear.ok()) << linear.status().to_string();
    ASSERT_LE(in * out, std::int64_t{1} << 19);
    constexpr std::uint8_t kCodes[] = {0xc0, 0xb8, 0x00, 0x38, 0x40};  // -2 to 2
    for (std::int64_t i = 0; i < in * out; ++i) {
      if (fp8) {
        reinterpret_cast<std::uint8_t*>(weights())[i] = kCodes[static_cast<int>(weight(i, in)) + 2];
      } else {
        weights()[i] = float_to_bf16(weight(i, in));
      }
    }
    for (std::int64_t row = 0; row < out; ++row)
      scales_[row] = fp8 ? std::ldexp(1.0f, static_cast<int>(row % 3)) : 1.0f;
    ProductTest::expect_product(*linear, in, rows, gated, scales_);
  }

  std::vector<float> scales_;
};

TEST_F(SkinnyLinearTest, EveryWeightIsMultipliedOnce) {
  expect_product(32, 8, 1, false);
  expect_product(320, 1000, 3, false);
  expect_product(4096, 96, 8, true);
  expect_product(4096, 96, 9, false);  // k of two CTAs
  expect_product(8992, 48, 2, false);  // of four, unevenly
  expect_product(8992, 32, 16, true);  // of eight
  expect_product(64, 8, 1, false, true);
  expect_product(4096, 96, 8, true, true);
  expect_product(8896, 48, 3, false, true);  // k of four CTAs, unevenly
}

TEST_F(SkinnyLinearTest, ClustersFit) {
  const Result<SkinnyLinear> down = SkinnyLinear::create(*device_, {.in = 14336, .out = 4096}, weights());
  const Result<SkinnyLinear> up = SkinnyLinear::create(
      *device_, {.in = 4096, .out = 28672, .norm = true, .activation = abi::LinearActivation::kSilu}, weights());
  ASSERT_TRUE(down.ok() && up.ok());
  fake::state().kernels["fovea_linear"] = [this](void** parameters) {
    std::memcpy(&args_, parameters[0], sizeof args_);
    return [] {};
  };
  alignas(16) static std::uint16_t memory[16];
  ProductCall call{.x = memory, .x_stride = 14336, .y = memory, .y_stride = 4096, .rows = 1};
  ASSERT_TRUE(down->forward(call, nullptr).ok());
  EXPECT_EQ(fake::state().launch.cluster[0], 4u);
  EXPECT_EQ(fake::state().launch.grid[0], 128u);
  EXPECT_TRUE(fake::state().launch.programmatic);
  call = {.x = memory, .x_stride = 4096, .y = memory, .y_stride = 14336, .rows = 9, .norm = memory};
  ASSERT_TRUE(up->forward(call, nullptr).ok());
  EXPECT_EQ(fake::state().launch.cluster[0], 2u);
  EXPECT_EQ(fake::state().launch.grid[0], 264u);
}

TEST_F(SkinnyLinearTest, RefusesWhatTheKernelDoesNotTake) {
  EXPECT_THAT(create({.in = 48, .out = 64}).message(), HasSubstr("multiples of 32 and 8"));
  EXPECT_THAT(create({.in = 64, .out = 12}).message(), HasSubstr("multiples of 32 and 8"));
  EXPECT_THAT(create({.in = 65536, .out = 8}).message(), HasSubstr("at most 32768"));
  EXPECT_EQ(create({.in = 64, .out = 8, .dtype = DType::kF32}).code(), StatusCode::kUnsupported);
  EXPECT_THAT(create({.in = 64, .out = 8, .dtype = DType::kF16, .norm = true}).message(), HasSubstr("normalize f16"));
  EXPECT_FALSE(SkinnyLinear::create(*device_, {.in = 64, .out = 8}, weights() + 1).ok());
  EXPECT_THAT(create({.in = 96, .out = 64, .fp8 = true}).message(), HasSubstr("multiples of 64 and 8"));
  EXPECT_THAT(create({.in = 64, .out = 64, .fp8 = true}).message(), HasSubstr("with scales, or neither"));

  const Result<SkinnyLinear> linear = SkinnyLinear::create(*device_, {.in = 28672, .out = 16}, weights());
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  alignas(16) static std::uint16_t memory[16];
  ProductCall call{.x = memory, .x_stride = 28672, .y = memory, .y_stride = 16, .rows = 8};
  EXPECT_TRUE(linear->takes(call));
  for (const std::int64_t rows : {0, 9, 17}) {  // 9 rows of so many numbers are too many for a cluster's registers
    call.rows = rows;
    EXPECT_FALSE(linear->takes(call)) << rows;
    EXPECT_EQ(linear->forward(call, nullptr).code(), StatusCode::kInvalidArgument);
  }
  call.rows = 8;
  call.x_stride = 28676;
  EXPECT_FALSE(linear->takes(call));
  call.x_stride = 28672;
  call.f32_out = true;
  call.residual = memory;
  EXPECT_EQ(linear->forward(call, nullptr).code(), StatusCode::kInvalidArgument);
  call.residual = nullptr;
  call.norm = memory;
  EXPECT_EQ(linear->forward(call, nullptr).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea
