// Matrix products against fp64 sums, over weight types, shapes with ragged ends, SIMD targets and thread counts; and
// that a row's bits do not depend on the rows beside it.
#include "cpu/ops/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "base/random.h"
#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

struct Case {
  std::int64_t rows, out, in;
};

// A weight in its storage type, and the values stored.
struct Weight {
  Weight(DType dtype, std::int64_t out, std::int64_t in, std::uint64_t seed) : values(out * in), halves(out * in) {
    PhiloxRng rng(seed);
    for (std::int64_t i = 0; i < out * in; ++i) {
      const float value = rng.next_normal();
      if (dtype == DType::kBF16) {
        halves[i] = float_to_bf16(value);
        values[i] = bf16_to_float(halves[i]);
      } else if (dtype == DType::kF16) {
        halves[i] = float_to_f16(value);
        values[i] = f16_to_float(halves[i]);
      } else if (dtype == DType::kF8E4M3) {
        if (i % in == 0) scales.push_back(0.25f + rng.next_float());
        codes.push_back(static_cast<std::uint8_t>(rng.next_below(127) | rng.next_below(2) << 7));  // all but NaN
        values[i] = e4m3_to_float(codes.back()) * scales.back();
      } else {
        values[i] = value;
      }
    }
    view = dtype == DType::kF32      ? cpu_tensor(values.data(), dtype, out, in)
           : dtype == DType::kF8E4M3 ? cpu_tensor(codes.data(), dtype, out, in)
                                     : cpu_tensor(halves.data(), dtype, out, in);
  }
  std::vector<float> values;
  std::vector<std::uint16_t> halves;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;  // of codes, one an output
  TensorView view;
};

std::vector<float> random_floats(std::int64_t n, std::uint64_t seed) {
  PhiloxRng rng(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = rng.next_normal();
  return values;
}

class MatmulTargets : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_simd_cap(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(set_simd_cap("").ok()); }
};

TEST_P(MatmulTargets, MatchesFp64) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3}) {
    for (const Case& c : {Case{1, 1, 1}, Case{1, 33, 7}, Case{1, 256, 768}, Case{3, 100, 300}, Case{4, 31, 64},
                          Case{5, 97, 513}, Case{14, 64, 256}, Case{15, 160, 600}, Case{233, 70, 270}}) {
      const Weight weight(dtype, c.out, c.in, 7);
      const std::vector<float> bias = random_floats(c.out, 9);
      const std::int64_t x_stride = c.in + 3, y_stride = c.out + 5;
      const std::vector<float> x = random_floats(c.rows * x_stride, 11);
      std::vector<float> y(static_cast<std::size_t>(c.rows * y_stride), 12345.0f);
      auto packed = PackedWeight::create(std::array{weight.view}, MatmulPrecision::kBf16, pool, weight.scales);
      ASSERT_TRUE(packed.ok()) << packed.status().to_string();
      MatmulScratch scratch;
      ASSERT_TRUE(scratch.reserve(c.in, pool.size()).ok());
      matmul(x.data(), x_stride, c.rows, *packed, bias.data(), y.data(), y_stride, MatmulPrecision::kF32, scratch,
             pool);
      for (std::int64_t r = 0; r < c.rows; ++r) {
        for (std::int64_t n = 0; n < c.out; ++n) {
          double sum = 0.0, magnitude = 0.0;
          for (std::int64_t k = 0; k < c.in; ++k) {
            const double term = double{x[r * x_stride + k]} * weight.values[n * c.in + k];
            sum += term;
            magnitude += std::abs(term);
          }
          sum += bias[n];
          // Sums of k terms in fp32: at most (k + 1) eps of the sum of magnitudes (Higham, section 3.1).
          // The product of the sum and its scale, and of each code and its scale, are rounded too.
          const double terms = static_cast<double>(c.in) + (dtype == DType::kF8E4M3 ? 4.0 : 2.0);
          const double bound = terms * 0x1p-24 * (magnitude + std::abs(bias[n]));
          ASSERT_NEAR(y[r * y_stride + n], sum, bound) << dtype_name(dtype) << " row " << r << " column " << n;
        }
        for (std::int64_t n = c.out; n < y_stride; ++n) ASSERT_EQ(y[r * y_stride + n], 12345.0f);
      }
    }
  }
}

TEST_P(MatmulTargets, BitsOfARowDoNotDependOnTheBatch) {
  const std::int64_t out = 100, in = 700, max_rows = 300;
  const Weight weight(DType::kBF16, out, in, 3);
  const std::vector<float> x = random_floats(max_rows * in, 4);
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBf16}) {
    std::vector<float> alone(static_cast<std::size_t>(max_rows * out));
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      auto packed = PackedWeight::create(std::array{weight.view}, precision, pool);
      ASSERT_TRUE(packed.ok());
      MatmulScratch scratch;
      ASSERT_TRUE(scratch.reserve(in, pool.size()).ok());
      if (threads == 1) {
        for (std::int64_t r = 0; r < max_rows; ++r) {
          matmul(&x[r * in], in, 1, *packed, nullptr, &alone[r * out], out, precision, scratch, pool);
        }
      }
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 29, 127, 224, 225, 300}) {
        // From there on by oneDNN, which adds in another order.
        if (precision == MatmulPrecision::kBf16 && rows >= kDnnlRows) continue;
        std::vector<float> y(static_cast<std::size_t>(rows * out));
        matmul(x.data(), in, rows, *packed, nullptr, y.data(), out, precision, scratch, pool);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(alone[i]))
              << rows << " rows, " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, MatmulTargets, ::testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

// Rounding x to bf16 (half a unit of 2^-8 each) is all that the faster path may cost.
TEST_P(MatmulTargets, Bf16LosesOnlyTheRoundingOfX) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
    for (const Case& c :
         {Case{1, 300, 513}, Case{2, 129, 256}, Case{5, 96, 700}, Case{8, 33, 1}, Case{9, 100, 7}, Case{12, 64, 256},
          Case{13, 31, 513}, Case{127, 40, 65}, Case{128, 33, 64}, Case{250, 70, 300}, Case{515, 96, 66}}) {
      const Weight weight(dtype, c.out, c.in, 7);
      const std::vector<float> bias = random_floats(c.out, 9);
      const std::vector<float> x = random_floats(c.rows * c.in, 11);
      std::vector<float> y(static_cast<std::size_t>(c.rows * c.out));
      auto packed = PackedWeight::create(std::array{weight.view}, MatmulPrecision::kBf16, pool, weight.scales);
      ASSERT_TRUE(packed.ok());
      MatmulScratch scratch;
      ASSERT_TRUE(scratch.reserve(c.in, pool.size()).ok());
      matmul(x.data(), c.in, c.rows, *packed, bias.data(), y.data(), c.out, MatmulPrecision::kBf16, scratch, pool);
      double squares = 0.0, rounded_squares = 0.0;
      for (std::int64_t i = 0; i < c.rows * c.out; ++i) {
        const std::int64_t r = i / c.out, n = i % c.out;
        double exact = bias[n], rounded = bias[n], magnitude = std::abs(bias[n]);
        for (std::int64_t k = 0; k < c.in; ++k) {
          exact += double{x[r * c.in + k]} * weight.values[n * c.in + k];
          rounded += double{bf16_to_float(float_to_bf16(x[r * c.in + k]))} * weight.values[n * c.in + k];
          magnitude += std::abs(double{x[r * c.in + k]} * weight.values[n * c.in + k]);
        }
        squares += (y[i] - exact) * (y[i] - exact);
        rounded_squares += (rounded - exact) * (rounded - exact);
        // Either path: fp32 on x as it is, or on x rounded.
        const double bound = (static_cast<double>(c.in) + 2.0) * 0x1p-23 * magnitude;
        ASSERT_LT(std::min(std::abs(y[i] - exact), std::abs(y[i] - rounded)), bound) << r << ", " << n;
      }
      EXPECT_LT(squares, 1.01 * rounded_squares + 1e-9);
    }
}

TEST(PackedWeight, RefusesWhatItCannotPack) {
  ThreadPool pool(1);
  std::vector<float> values(16);
  const auto code_of = [&](const TensorView& view) {
    return PackedWeight::create(std::array{view}, MatmulPrecision::kBf16, pool).status().code();
  };
  EXPECT_EQ(code_of(cpu_tensor(values.data(), DType::kF32, 16)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(cpu_tensor(values.data(), DType::kI8, 4, 4)), StatusCode::kUnsupported);
  EXPECT_EQ(code_of(cpu_tensor(values.data(), DType::kF32, 0, 4)), StatusCode::kInvalidArgument);
  // e4m3 comes with a scale an output, other types without.
  EXPECT_EQ(code_of(cpu_tensor(values.data(), DType::kF8E4M3, 4, 4)), StatusCode::kInvalidArgument);
  const TensorView whole = cpu_tensor(values.data(), DType::kF32, 4, 4);
  EXPECT_EQ(
      PackedWeight::create(std::array{whole}, MatmulPrecision::kF32, pool, std::vector<float>(4, 1.0f)).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(PackedWeight::create({}, MatmulPrecision::kBf16, pool).status().code(), StatusCode::kInvalidArgument);
}

TEST(PackedWeight, StacksParts) {
  ThreadPool pool(2);
  const Weight whole(DType::kF16, 100, 40, 1);
  std::array<TensorView, 3> parts;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t rows = std::array{37, 1, 62}[i];
    parts[i] = cpu_tensor(&whole.halves[static_cast<std::size_t>(row * 40)], DType::kF16, rows, 40);
    row += rows;
  }
  auto stacked = PackedWeight::create(parts, MatmulPrecision::kBf16, pool);
  auto plain = PackedWeight::create(std::array{whole.view}, MatmulPrecision::kBf16, pool);
  ASSERT_TRUE(stacked.ok() && plain.ok());
  EXPECT_EQ(stacked->out_features(), 100);
  EXPECT_EQ(std::memcmp(stacked->data(), plain->data(), plain->size_bytes()), 0);
  parts[1] = cpu_tensor(whole.halves.data(), DType::kF16, 1, 41);
  EXPECT_EQ(PackedWeight::create(parts, MatmulPrecision::kBf16, pool).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea::cpu
