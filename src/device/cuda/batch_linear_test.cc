// How products of a batch are divided and launched, on a driver without a GPU whose kernel multiplies what each
// warpgroup of each CTA is given; what is refused; and which kernel is chosen for what.
#include "device/cuda/batch_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "cuda/testing/fake_driver.h"
#include "device/cuda/cuda_linear.h"
#include "device/cuda/product_choice.h"
#include "device/cuda/product_test_util.h"

namespace fovea {
namespace {

namespace fake = cuda::fake;
using ::testing::HasSubstr;

// Before anything asks for the driver or for kernels.
const bool kPrepared = fake::name_driver_and_cache();

// The product as the grid shares it: whatever is left out or multiplied twice is missing in y, or too much.
void multiply(const abi::LinearArgs& a) {
  const abi::LinearShape& s = a.shape;
  const auto* x = static_cast<const std::uint16_t*>(a.x);
  const auto w = [&](std::size_t i) { return bf16_to_float(static_cast<const std::uint16_t*>(s.w)[i]); };
  std::vector<std::vector<double>> sums(a.tokens, std::vector<double>(2 * s.pairs, 0.0));
  const std::uint32_t slices = s.k / s.slice;
  for (std::uint32_t part = 0; part < s.clusters; ++part) {
    const abi::LinearPairs pairs = abi::linear_pairs(s, part);
    for (std::uint32_t cta = 0; cta < s.split; ++cta) {
      for (std::uint32_t row = 2 * pairs.begin; row < 2 * pairs.end; ++row) {
        const std::size_t at = s.half == 1 ? row : row / 2 + row % 2 * std::size_t{s.half};
        for (std::uint32_t k = slices * cta / s.split * s.slice; k < slices * (cta + 1) / s.split * s.slice; ++k) {
          for (std::uint32_t t = 0; t < a.tokens; ++t) {
            sums[t][row] += bf16_to_float(x[t * a.x_stride + k]) * w(at * s.k + k);
          }
        }
      }
    }
  }
  write_products(a, sums);
}

class BatchLinearTest : public ProductTest {
 protected:
  BatchLinearTest() : ProductTest("fovea_linear_batch", multiply) {}

  Status create(const ProductSpec& spec) { return BatchLinear::create(*device_, spec, weights()).status(); }

  // Small integers, so that sums are exact; against the definition.
  void expect_product(std::int64_t in, std::int64_t out, std::int64_t rows, bool gated) {
    SCOPED_TRACE(::testing::Message() << in << " in, " << out << " out, " << rows << " rows, gated " << gated);
    ProductSpec spec{.in = in, .out = out};
    if (gated) spec.activation = abi::LinearActivation::kSilu;
    const Result<BatchLinear> linear = BatchLinear::create(*device_, spec, weights());
    ASSERT_TRUE(linear.ok()) << linear.status().to_string();
    ASSERT_LE(in * out, std::int64_t{1} << 19);
    for (std::int64_t i = 0; i < in * out; ++i) weights()[i] = float_to_bf16(weight(i, in));
    ProductTest::expect_product(*linear, in, rows, gated, std::vector<float>(out, 1.0f));
    EXPECT_TRUE(fake::state().launch.programmatic);
  }
};

TEST_F(BatchLinearTest, EveryWeightIsMultipliedOnce) {
  expect_product(256, 8, 9, false);
  expect_product(320, 1000, 16, false);
  expect_product(4096, 96, 33, true);
  expect_product(8992, 48, 64, false);  // x is streamed
  expect_product(4096, 32, 5, true);
}

// All clusters run at once, however many the card has room for.
TEST_F(BatchLinearTest, TheGridIsWhatTheDeviceHolds) {
  const Result<BatchLinear> linear = BatchLinear::create(*device_, {.in = 4096, .out = 4096}, weights());
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  fake::state().kernels["fovea_linear_batch"] = [](void**) { return [] {}; };
  alignas(16) static std::uint16_t memory[16];
  ProductCall call{.x = memory, .x_stride = 4096, .y = memory, .y_stride = 4096};
  for (const auto& [rows, split] : {std::pair{5, 4u}, {16, 4u}, {17, 8u}, {64, 8u}}) {
    call.rows = rows;
    ASSERT_TRUE(linear->forward(call, nullptr).ok());
    EXPECT_EQ(fake::state().launch.cluster[0], split) << rows;
    EXPECT_EQ(fake::state().launch.grid[0], 128u) << rows;
  }
}

TEST_F(BatchLinearTest, RefusesWhatTheKernelDoesNotTake) {
  EXPECT_THAT(create({.in = 48, .out = 64}).message(), HasSubstr("multiples of 32 and 8"));
  EXPECT_THAT(create({.in = 64, .out = 12}).message(), HasSubstr("multiples of 32 and 8"));
  EXPECT_THAT(create({.in = 224, .out = 8}).message(), HasSubstr("at least 256"));
  EXPECT_EQ(create({.in = 256, .out = 8, .dtype = DType::kF32}).code(), StatusCode::kUnsupported);
  EXPECT_THAT(create({.in = 256, .out = 8, .dtype = DType::kF16, .norm = true}).message(), HasSubstr("normalize f16"));
  EXPECT_FALSE(BatchLinear::create(*device_, {.in = 256, .out = 8}, weights() + 1).ok());
  EXPECT_THAT(create({.in = 64, .out = 64, .fp8 = true}).message(), HasSubstr("no e4m3 weights"));
  const Result<BatchLinear> linear = BatchLinear::create(*device_, {.in = 4096, .out = 16}, weights());
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  alignas(16) static std::uint16_t memory[16];
  ProductCall call{.x = memory, .x_stride = 4096, .y = memory, .y_stride = 16, .rows = 64};
  EXPECT_TRUE(linear->takes(call));
  for (const std::int64_t rows : {0, 65}) {
    call.rows = rows;
    EXPECT_FALSE(linear->takes(call)) << rows;
    EXPECT_EQ(linear->forward(call, nullptr).code(), StatusCode::kInvalidArgument);
  }
  call.rows = 64;
  call.x_stride = 4100;
  EXPECT_FALSE(linear->takes(call));
  call.x_stride = 4096;
  call.norm = memory;
  EXPECT_EQ(linear->forward(call, nullptr).code(), StatusCode::kInvalidArgument);
}

// Rows that choose_product() sends elsewhere have no kernel, which nobody would launch.
TEST_F(BatchLinearTest, MakesTheKernelsThatAreChosen) {
  const auto rows_of = [](std::int64_t in, bool has_skinny) {
    const ProductRows rows = batch_rows(in, has_skinny);
    return std::pair(rows.least, rows.most);
  };
  EXPECT_EQ(rows_of(2048, true), std::pair(std::int64_t{9}, std::int64_t{32}));
  EXPECT_EQ(rows_of(2048, false), std::pair(std::int64_t{1}, std::int64_t{32}));
  EXPECT_EQ(rows_of(4096, true), std::pair(std::int64_t{5}, std::int64_t{64}));
  const ProductSpec few{.in = 2048, .out = 16, .least_rows = 9, .most_rows = 32};
  EXPECT_EQ(batch_kernels("sm_90a", few)->size(), 2u);
  EXPECT_EQ(batch_kernels("sm_90a", {.in = 2048, .out = 16})->size(), 4u);
  const Result<BatchLinear> linear = BatchLinear::create(*device_, few, weights());
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  alignas(16) static std::uint16_t memory[16];
  ProductCall call{.x = memory, .x_stride = 2048, .y = memory, .y_stride = 16};
  for (const auto& [rows, takes] : {std::pair{8, false}, {9, true}, {32, true}, {33, false}}) {
    call.rows = rows;
    EXPECT_EQ(linear->takes(call), takes) << rows;
  }
  // What is made ahead of time is what a layer of such sizes makes.
  const auto product = product_kernels("sm_90a", DType::kBF16, false, {1024, 1024, 2048}, Activation::kSilu);
  ASSERT_TRUE(product.ok());
  const auto has = [&](std::uint32_t rows) {
    return std::any_of(product->begin(), product->end(), [&](const jit::KernelSource& kernel) {
      return kernel.text.find("FOVEA_BATCH_TOKENS " + std::to_string(rows)) != std::string::npos;
    });
  };
  EXPECT_TRUE(has(16) && has(32));
  EXPECT_FALSE(has(8) || has(64));
}

TEST(ProductChoiceTest, ByRowsAndWhatThereIs) {
  const auto choice = [](std::int64_t rows, bool skinny, bool batch, std::int64_t in = 4096) {
    const ProductChoice made = choose_product({.rows = rows, .in = in, .has_skinny = skinny, .has_batch = batch});
    EXPECT_STRNE(made.reason, "");
    return made.kernel;
  };
  EXPECT_EQ(choice(1, true, true), ProductKernel::kSkinny);
  EXPECT_EQ(choice(4, true, true), ProductKernel::kSkinny);
  EXPECT_EQ(choice(5, true, true), ProductKernel::kBatch);
  EXPECT_EQ(choice(8, true, false), ProductKernel::kSkinny);
  EXPECT_EQ(choice(8, true, true, 2048), ProductKernel::kSkinny);
  EXPECT_EQ(choice(9, true, true, 2048), ProductKernel::kBatch);
  EXPECT_EQ(choice(9, true, true), ProductKernel::kBatch);
  EXPECT_EQ(choice(64, true, true), ProductKernel::kBatch);
  EXPECT_EQ(choice(65, true, true), ProductKernel::kCublasLt);
  EXPECT_EQ(choice(32, true, true, 2048), ProductKernel::kBatch);
  EXPECT_EQ(choice(33, true, true, 2048), ProductKernel::kCublasLt);
  EXPECT_EQ(choice(8, false, true), ProductKernel::kBatch);
  EXPECT_EQ(choice(8, false, false), ProductKernel::kCublasLt);
  EXPECT_EQ(choice(64, true, false), ProductKernel::kCublasLt);
  EXPECT_EQ(choice(0, true, true), ProductKernel::kCublasLt);
}

}  // namespace
}  // namespace fovea
